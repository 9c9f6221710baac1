"""The Event Hubs door of the log: its streams as the hubs of one namespace of Azure Event Hubs."""
