//go:build !linux

package dev

import (
	"context"
	"runtime"
)

// Check is nil where development networks can be made, else ErrNeeds.
func Check() error { return needs("this is " + runtime.GOOS) }

// Up is refused here.
func Up(context.Context, Options) error { return Check() }

// Tour is refused here.
func Tour(context.Context, Options) error { return Check() }

// Look is refused here.
func Look(context.Context, Options) (Status, error) { return Status{}, Check() }

// Down is refused here.
func Down(context.Context, Options) error { return Check() }

// Clean is refused here.
func Clean(context.Context, Options) ([]string, error) { return nil, Check() }
