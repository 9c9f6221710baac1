package main

import (
	"fmt"
	"reflect"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	streamed "github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

// writer publishes to a stream, or to all partitions of a super stream.
type writer struct {
	alone    *stream.Producer
	all      *stream.SuperStreamProducer
	events   *inbox
	statuses chan *stream.ConfirmationStatus
}

func newWriter(environment *stream.Environment, request asked) (any, error) {
	made := &writer{events: newInbox(), statuses: make(chan *stream.ConfirmationStatus, 10_000)}
	var filter *stream.ProducerFilter
	if request.Filter {
		filter = stream.NewProducerFilter(func(message streamed.StreamMessage) string { return property(message, "filter") })
	}
	if request.SuperStream != "" {
		return made, made.openAll(environment, request, filter)
	}
	return made, made.openOne(environment, request, filter)
}

func (made *writer) openOne(environment *stream.Environment, request asked, filter *stream.ProducerFilter) error {
	options := stream.NewProducerOptions().SetProducerName(request.Name).SetFilter(filter).SetConfirmationTimeOut(patience)
	if request.EntrySize > 0 {
		options.SetSubEntrySize(request.EntrySize).SetCompression(compressions[request.Compression])
	}
	producer, err := environment.NewProducer(request.Stream, options)
	if err != nil {
		return err
	}
	made.alone = producer
	confirmed, closed := producer.NotifyPublishConfirmation(), producer.NotifyClose()
	go func() {
		for several := range confirmed {
			for _, status := range several {
				made.statuses <- status
			}
		}
	}()
	go func() {
		if _, told := <-closed; told {
			made.events.add("closed")
		}
	}()
	return nil
}

func (made *writer) openAll(environment *stream.Environment, request asked, filter *stream.ProducerFilter) error {
	key := func(message streamed.StreamMessage) string { return property(message, "key") }
	var routing stream.RoutingStrategy = stream.NewKeyRoutingStrategy(key)
	if request.Routing == "hash" {
		routing = stream.NewHashRoutingStrategy(key)
	}
	options := stream.NewSuperStreamProducerOptions(routing).SetFilter(filter)
	producer, err := environment.NewSuperStreamProducer(request.SuperStream, options)
	if err != nil {
		return err
	}
	made.all = producer
	bePatient(producer)
	confirmed := producer.NotifyPublishConfirmation(1)
	go func() {
		for several := range confirmed {
			for _, status := range several.ConfirmationStatus {
				made.statuses <- status
			}
		}
	}()
	return nil
}

// bePatient has the producers of a super stream wait for confirms as long as that of a stream. The client has an option
// for the latter only, and tells what is not confirmed in 10 s as refused.
func bePatient(producer *stream.SuperStreamProducer) {
	each := reflect.ValueOf(producer).Elem().FieldByName("activeProducers")
	for n := range each.Len() {
		options := each.Index(n).Elem().FieldByName("options")
		(*stream.ProducerOptions)(options.UnsafePointer()).ConfirmationTimeOut = patience
	}
}

var compressions = map[string]stream.Compression{
	"none":   stream.Compression{}.None(),
	"gzip":   stream.Compression{}.Gzip(),
	"snappy": stream.Compression{}.Snappy(),
	"lz4":    stream.Compression{}.Lz4(),
	"zstd":   stream.Compression{}.Zstd(),
}

// send returns once each message is confirmed or refused.
func (made *writer) send(messages []message) (any, error) {
	built := make([]streamed.StreamMessage, 0, len(messages))
	for _, each := range messages {
		built = append(built, build(each))
	}
	if made.all != nil {
		for _, each := range built {
			if err := made.all.Send(each); err != nil {
				return nil, err
			}
		}
	} else if err := made.alone.BatchSend(built); err != nil {
		return nil, err
	}
	confirmed, codes, deadline := 0, map[uint16]bool{}, time.After(patience)
	for answered := 0; answered < len(messages); answered++ {
		select {
		case status := <-made.statuses:
			if status.IsConfirmed() {
				confirmed++
			} else {
				codes[status.GetErrorCode()] = true
			}
		case <-deadline:
			return nil, fmt.Errorf("%d of %d have no answer", len(messages)-answered, len(messages))
		}
	}
	refused := []uint16{}
	for code := range codes {
		refused = append(refused, code)
	}
	return map[string]any{"confirmed": confirmed, "codes": refused}, nil
}

func build(from message) *amqp.AMQP10 {
	built := amqp.NewMessage([]byte(from.Body))
	built.ApplicationProperties = map[string]any{}
	if from.Key != nil {
		built.ApplicationProperties["key"] = *from.Key
	}
	if from.Filter != nil {
		built.ApplicationProperties["filter"] = *from.Filter
	}
	if from.ID != nil {
		built.SetPublishingId(*from.ID)
	}
	return built
}

// property returns an application property, "" where there is none.
func property(message streamed.StreamMessage, name string) string {
	value, _ := message.GetApplicationProperties()[name].(string)
	return value
}

func (made *writer) told() *inbox { return made.events }

func (made *writer) Close() error {
	if made.all != nil {
		return made.all.Close()
	}
	return made.alone.Close()
}
