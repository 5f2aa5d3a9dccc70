package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

// noun is a kind of thing that a control plane keeps, as its commands have it: how one is named as an argument, K, and how it is
// printed, T. All commands about things of a kind are made of it.
type noun[K, T any] struct {
	arg   string // what the first argument is, in a usage line
	parse func(arg string) (K, error)
	print func(p *plane, v T) error
	head  string // of lists, words separated by blanks
	row   func(T) []string
}

// step is what a command does at the control plane.
type step[T any] func(ctx context.Context, c *control.Client) (T, error)

// words are what help says of a command.
type words struct {
	use, short, long, example string
	args                      cobra.PositionalArgs // of lists
}

// command makes a command about one thing, which is the first argument. about has the verb and the names of further arguments as
// its use, and the texts of help. plan judges what was given before the control plane is asked for anything, and returns what to do
// there; the result is printed.
func (n noun[K, T]) command(p *plane, about words, plan func(key K, more []string) (step[T], error)) *cobra.Command {
	verb, more, _ := strings.Cut(about.use, " ")
	return &cobra.Command{
		Use: strings.TrimSpace(verb + " " + n.arg + " " + more), Short: about.short, Long: about.long, Example: about.example,
		Args: cobra.ExactArgs(1 + len(strings.Fields(more))),
		RunE: func(_ *cobra.Command, args []string) error {
			key, err := n.parse(args[0])
			if err != nil {
				return err
			}
			do, err := plan(key, args[1:])
			if err != nil {
				return err
			}
			return p.call(func(ctx context.Context, c *control.Client) error {
				v, err := do(ctx, c)
				if err != nil {
					return err
				}
				return n.print(p, v)
			})
		},
	}
}

// does makes a command that has no flags or further arguments.
func (n noun[K, T]) does(verb, short string, do func(c *control.Client, ctx context.Context, key K) (T, error)) func(*plane) *cobra.Command {
	return func(p *plane) *cobra.Command {
		return n.command(p, words{use: verb, short: short}, func(key K, _ []string) (step[T], error) {
			return func(ctx context.Context, c *control.Client) (T, error) { return do(c, ctx, key) }, nil
		})
	}
}

// reads makes a command that sends what a file says.
func (n noun[K, T]) reads(about words, plan func(key K, text []byte) (step[T], error)) func(*plane) *cobra.Command {
	about.use += " FILE|-"
	return func(p *plane) *cobra.Command {
		return n.command(p, about, func(key K, more []string) (step[T], error) {
			text, err := p.readText(more[0])
			if err != nil {
				return nil, err
			}
			do, err := plan(key, text)
			if err != nil {
				return nil, faulty(more[0], err)
			}
			return do, nil
		})
	}
}

// lists makes a command that prints several things in a table. about is all of it but what it does.
func (n noun[K, T]) lists(about words, list func(ctx context.Context, c *control.Client, args []string) ([]T, error)) func(*plane) *cobra.Command {
	return func(p *plane) *cobra.Command {
		return &cobra.Command{
			Use: about.use, Short: about.short, Args: about.args,
			RunE: func(_ *cobra.Command, args []string) error {
				return p.call(func(ctx context.Context, c *control.Client) error {
					all, err := list(ctx, c, args)
					if err != nil {
						return err
					}
					return showAll(p, all, n.head, n.row)
				})
			},
		}
	}
}

// tabled is a noun whose things are printed as a table with one row.
func tabled[K, T any](arg string, parse func(arg string) (K, error), head string, row func(T) []string) noun[K, T] {
	return noun[K, T]{arg: arg, parse: parse, head: head, row: row, print: func(p *plane, v T) error { return show(p, v, head, row) }}
}

// asName takes an argument as it is: the control plane says what is wrong with it.
func asName(arg string) (string, error) { return arg, nil }

// asRef reads an argument of the form ATESPACE/NAME, which names a thing of some kind.
func asRef(what string) func(arg string) (actor.Ref, error) {
	return func(arg string) (actor.Ref, error) { return parseRef(what, arg) }
}
