// RabbitMQ's Go client, told what to do by lines of JSON on stdin; interop.py has what may be asked.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

// asked is one request; what a request does not need is left out.
type asked struct {
	Do              string          `json:"do"`
	As              string          `json:"as"`
	On              string          `json:"on"`
	Of              string          `json:"of"`
	URL             string          `json:"url"`
	CA              string          `json:"ca"`
	Certificate     string          `json:"certificate"`
	Key             string          `json:"key"`
	Stream          string          `json:"stream"`
	SuperStream     string          `json:"super_stream"`
	MaxAgeS         int64           `json:"max_age_s"`
	Keys            []string        `json:"keys"`
	Partitions      int             `json:"partitions"`
	Name            string          `json:"name"`
	Routing         string          `json:"routing"`
	Filter          bool            `json:"filter"`
	EntrySize       int             `json:"entry_size"`
	Compression     string          `json:"compression"`
	Messages        []message       `json:"messages"`
	From            json.RawMessage `json:"from"`
	StoreEvery      int             `json:"store_every"`
	SingleActive    bool            `json:"single_active"`
	FilterValues    []string        `json:"filter_values"`
	MatchUnfiltered bool            `json:"match_unfiltered"`
	Count           int             `json:"count"`
	Offset          int64           `json:"offset"`
}

type message struct {
	Body   string  `json:"body"`
	ID     *int64  `json:"id"`
	Key    *string `json:"key"`
	Filter *string `json:"filter"`
}

type closer interface{ Close() error }

var named = map[string]any{}

func main() {
	log.SetOutput(os.Stderr)
	requests := bufio.NewReader(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := requests.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var request asked
		reply := map[string]any{}
		if err := json.Unmarshal(line, &request); err != nil {
			reply["error"] = err.Error()
		} else if value, err := answer(request); err != nil {
			reply["error"] = err.Error()
		} else {
			reply["value"] = value
		}
		if err := answers.Encode(reply); err != nil {
			log.Fatal(err)
		}
	}
}

func answer(request asked) (any, error) {
	environment, _ := named[request.On].(*stream.Environment)
	switch request.Do {
	case "connect":
		return keep(request.As)(connect(request))
	case "create":
		options := stream.NewStreamOptions().SetMaxAge(time.Duration(request.MaxAgeS) * time.Second)
		return nil, environment.DeclareStream(request.Stream, options)
	case "create_super_stream":
		if request.Keys != nil {
			return nil, environment.DeclareSuperStream(request.SuperStream, stream.NewBindingsOptions(request.Keys))
		}
		return nil, environment.DeclareSuperStream(request.SuperStream, stream.NewPartitionsOptions(request.Partitions))
	case "delete":
		return nil, environment.DeleteStream(request.Stream)
	case "delete_super_stream":
		return nil, environment.DeleteSuperStream(request.SuperStream)
	case "exists":
		return environment.StreamExists(request.Stream)
	case "producer":
		return keep(request.As)(newWriter(environment, request))
	case "send":
		return named[request.Of].(*writer).send(request.Messages)
	case "last_id":
		return named[request.Of].(*writer).alone.GetLastPublishingId()
	case "consumer":
		return keep(request.As)(newReader(environment, request))
	case "take":
		return named[request.Of].(*reader).messages.take(request.Count)
	case "told":
		return named[request.Of].(interface{ told() *inbox }).told().take(request.Count)
	case "store":
		return nil, environment.StoreOffset(request.Name, request.Stream, request.Offset)
	case "stored":
		offset, err := named[request.Of].(*reader).alone.QueryOffset()
		if errors.Is(err, stream.OffsetNotFoundError) {
			return nil, nil
		}
		return offset, err
	case "close":
		thing := named[request.Of].(closer)
		delete(named, request.Of)
		return nil, thing.Close()
	}
	return nil, fmt.Errorf("no such request: %s", request.Do)
}

func keep(name string) func(thing any, err error) (any, error) {
	return func(thing any, err error) (any, error) {
		if err == nil {
			named[name] = thing
		}
		return nil, err
	}
}

func connect(request asked) (any, error) {
	options := stream.NewEnvironmentOptions().SetUri(request.URL).SetRPCTimeout(patience)
	if request.CA != "" {
		authority, err := os.ReadFile(request.CA)
		if err != nil {
			return nil, err
		}
		where, err := url.Parse(request.URL)
		if err != nil {
			return nil, err
		}
		config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: where.Hostname()}
		config.RootCAs.AppendCertsFromPEM(authority)
		if request.Certificate != "" {
			pair, err := tls.LoadX509KeyPair(request.Certificate, request.Key)
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{pair}
			options.SetSaslConfiguration(stream.SaslConfigurationExternal)
		}
		options.SetTLSConfig(config)
	}
	return stream.NewEnvironment(options)
}
