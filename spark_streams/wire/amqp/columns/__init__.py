"""Decode blocks of messages to Arrow columns, and encode columns to messages.

``decode`` reads what rows need, ``typed`` what filters compare, ``from_producers`` what a log needs of new messages;
``encode`` writes. ``single_message`` has the meaning of every column.
"""
