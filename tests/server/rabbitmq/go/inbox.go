package main

import (
	"fmt"
	"sync"
	"time"
)

const patience = 120 * time.Second

// inbox has what came by itself, in order; take waits for as many as are asked for.
type inbox struct {
	mutex sync.Mutex
	all   []any
	more  chan struct{}
}

func newInbox() *inbox {
	return &inbox{all: []any{}, more: make(chan struct{}, 1)}
}

func (box *inbox) add(thing any) {
	box.mutex.Lock()
	box.all = append(box.all, thing)
	box.mutex.Unlock()
	select {
	case box.more <- struct{}{}:
	default:
	}
}

// take returns the first count of all that ever came, and what is there beyond them.
func (box *inbox) take(count int) (any, error) {
	deadline := time.After(patience)
	for {
		box.mutex.Lock()
		found := append([]any{}, box.all...)
		box.mutex.Unlock()
		if len(found) >= count {
			return found, nil
		}
		select {
		case <-box.more:
		case <-deadline:
			return nil, fmt.Errorf("only %d of %d: %v", len(found), count, found)
		}
	}
}
