// go-amqp, told what to do by lines of JSON on stdin; test_foreign_peers.py asks.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/Azure/go-amqp"
)

type asked struct {
	Do      string   `json:"do"`
	As      string   `json:"as"`
	Of      string   `json:"of"`
	URL     string   `json:"url"`
	Address string   `json:"address"`
	Bodies  []string `json:"bodies"`
	Count   int      `json:"count"`
	Credit  int32    `json:"credit"`
	Settled bool     `json:"settled"`
	From    string   `json:"from"`
}

var (
	connection *amqp.Conn
	session    *amqp.Session
	receivers  = map[string]*amqp.Receiver{}
)

func answer(ctx context.Context, a asked) (any, error) {
	var err error
	switch a.Do {
	case "connect":
		options := &amqp.ConnOptions{SASLType: amqp.SASLTypePlain("guest", "guest"), MaxFrameSize: 4096}
		if connection, err = amqp.Dial(ctx, a.URL, options); err == nil {
			session, err = connection.NewSession(ctx, nil)
		}
		return nil, err
	case "publish":
		var options *amqp.SenderOptions
		if a.Settled {
			options = &amqp.SenderOptions{SettlementMode: amqp.SenderSettleModeSettled.Ptr()}
		}
		sender, err := session.NewSender(ctx, a.Address, options)
		if err != nil {
			return nil, err
		}
		for _, body := range a.Bodies {
			if err = sender.Send(ctx, amqp.NewMessage([]byte(body)), nil); err != nil {
				return nil, err
			}
		}
		return nil, sender.Close(ctx)
	case "receiver":
		filter := amqp.NewLinkFilter("start", 0x200, map[string]any{"event-streams-offset": a.From})
		options := &amqp.ReceiverOptions{Credit: a.Credit, Filters: []amqp.LinkFilter{filter}}
		if a.Settled {
			options.RequestedSenderSettleMode = amqp.SenderSettleModeSettled.Ptr()
		}
		receivers[a.As], err = session.NewReceiver(ctx, a.Address, options)
		return nil, err
	case "take":
		taken := []string{}
		for range a.Count {
			message, err := receivers[a.Of].Receive(ctx, nil)
			if err != nil {
				return nil, err
			}
			if err = receivers[a.Of].AcceptMessage(ctx, message); err != nil {
				return nil, err
			}
			taken = append(taken, string(message.GetData()))
		}
		return taken, nil
	case "drain":
		return nil, receivers[a.Of].DrainCredit(ctx, nil)
	case "detach":
		return nil, receivers[a.Of].Close(ctx)
	case "close":
		return nil, connection.Close()
	}
	return nil, fmt.Errorf("what is %q?", a.Do)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var a asked
		result := map[string]any{}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		err := json.Unmarshal(lines.Bytes(), &a)
		if err == nil {
			result["value"], err = answer(ctx, a)
		}
		cancel()
		if err != nil {
			result["error"] = err.Error()
		}
		line, _ := json.Marshal(result)
		fmt.Println(string(line))
	}
}
