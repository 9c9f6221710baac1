package main

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

// reader consumes a stream, or all partitions of a super stream.
type reader struct {
	alone    *stream.Consumer
	all      *stream.SuperStreamConsumer
	events   *inbox
	messages *inbox
}

func newReader(environment *stream.Environment, request asked) (any, error) {
	made := &reader{events: newInbox(), messages: newInbox()}
	from, err := start(environment, request)
	if err != nil {
		return nil, err
	}
	var filter *stream.ConsumerFilter
	if request.FilterValues != nil {
		filter = stream.NewConsumerFilter(request.FilterValues, request.MatchUnfiltered, func(message *amqp.Message) bool {
			value, found := message.ApplicationProperties["filter"].(string)
			return slices.Contains(request.FilterValues, value) || !found && request.MatchUnfiltered
		})
	}
	var single *stream.SingleActiveConsumer
	if request.SingleActive {
		// Goes on behind what is stored, as a program of this client does.
		single = stream.NewSingleActiveConsumer(func(partition string, active bool) stream.OffsetSpecification {
			made.events.add([]any{partition, active})
			if stored, err := environment.QueryOffset(request.Name, partition); err == nil {
				return stream.OffsetSpecification{}.Offset(stored + 1)
			}
			return from
		})
	}
	handle := func(context stream.ConsumerContext, message *amqp.Message) {
		consumer := context.Consumer
		made.messages.add([]any{consumer.GetStreamName(), consumer.GetOffset(), string(message.GetData())})
	}
	if request.SuperStream != "" {
		options := stream.NewSuperStreamConsumerOptions().SetOffset(from).SetConsumerName(request.Name)
		options.SetFilter(filter).SetSingleActiveConsumer(single)
		made.all, err = environment.NewSuperStreamConsumer(request.SuperStream, handle, options)
		return made, err
	}
	options := stream.NewConsumerOptions().SetOffset(from).SetConsumerName(request.Name)
	options.SetFilter(filter).SetSingleActiveConsumer(single)
	if request.StoreEvery > 0 {
		options.SetAutoCommit(stream.NewAutoCommitStrategy().SetCountBeforeStorage(request.StoreEvery))
	}
	made.alone, err = environment.NewConsumer(request.Stream, handle, options)
	if err == nil {
		closed := made.alone.NotifyClose()
		go func() {
			if _, told := <-closed; told {
				made.events.add("closed")
			}
		}()
	}
	return made, err
}

func start(environment *stream.Environment, request asked) (stream.OffsetSpecification, error) {
	var none stream.OffsetSpecification
	var word string
	if json.Unmarshal(request.From, &word) != nil {
		var where struct{ Offset, Timestamp *int64 }
		if err := json.Unmarshal(request.From, &where); err != nil {
			return none, err
		}
		if where.Offset != nil {
			return none.Offset(*where.Offset), nil
		}
		return none.Timestamp(*where.Timestamp), nil
	}
	switch word {
	case "last":
		return none.Last(), nil
	case "next":
		return none.Next(), nil
	case "stored":
		stored, err := environment.QueryOffset(request.Name, request.Stream)
		if errors.Is(err, stream.OffsetNotFoundError) {
			return none.First(), nil
		}
		return none.Offset(stored + 1), err
	}
	return none.First(), nil
}

func (made *reader) told() *inbox { return made.events }

func (made *reader) Close() error {
	if made.all != nil {
		return made.all.Close()
	}
	return made.alone.Close()
}
