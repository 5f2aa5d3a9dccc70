package store_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/store"
	"github.com/sluice-proxy/sluice/internal/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, 10000, func(*testing.T) store.Store { return store.NewMemory() })
}
