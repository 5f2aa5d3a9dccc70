package demo

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// story is what every answer tells, again and again if more tokens are wanted.
const story = `A sluice is a small gate with a large responsibility. ` +
	`It stands where the millstream leaves the river, and all day it decides how much water may pass. ` +
	`Raise it, and the wheel turns; lower it, and the meadow stays dry. ` +
	`A good keeper moves it slowly, a hand's width at a time, so that no wave runs down the channel and no boat is left on the mud. ` +
	`When the gate is mended the water is led around, and nobody at the mill hears the difference. ` +
	`The river does not ask who keeps it. It only arrives, evenly, where it is expected.`

// echoLimit bounds how much of a prompt is repeated, in characters.
const echoLimit = 80

// compose returns the tokens of an answer and why it ends. The text depends on
// nothing but its arguments.
func compose(backend, prompt string, p plan) (tokens []string, finish string) {
	opening := "This is backend " + backend + "."
	if echo := shorten(prompt); echo != "" {
		opening += " You wrote: \u201c" + echo + "\u201d."
	}
	tokens = split(opening + " " + story)
	if p.count > 0 {
		more := split(" " + story)
		for len(tokens) < p.count {
			tokens = append(tokens, more...)
		}
		tokens = tokens[:p.count]
	}
	if p.limit > 0 && p.limit < len(tokens) {
		return tokens[:p.limit], "length"
	}
	return tokens, "stop"
}

// split cuts text into words that keep the space before them, so that joining
// them gives the text back.
func split(text string) []string {
	var tokens []string
	start := 0
	for i := 1; i < len(text); i++ {
		if text[i] == ' ' && text[i-1] != ' ' {
			tokens = append(tokens, text[start:i])
			start = i
		}
	}
	if start < len(text) {
		tokens = append(tokens, text[start:])
	}
	return tokens
}

// shorten makes one line of at most echoLimit characters, cut between words
// where that is possible.
func shorten(prompt string) string {
	// A prompt may be megabytes; far less than this fills the line.
	if len(prompt) > 64*echoLimit {
		prompt = prompt[:64*echoLimit]
	}
	line := strings.Join(strings.FieldsFunc(strings.ToValidUTF8(prompt, ""), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if utf8.RuneCountInString(line) <= echoLimit {
		return line
	}
	cut := string([]rune(line)[:echoLimit-1])
	if i := strings.LastIndexByte(cut, ' '); i > len(cut)/2 {
		cut = cut[:i]
	}
	return cut + "\u2026"
}

// countTokens counts words, at least one.
func countTokens(texts ...string) int {
	n := 0
	for _, t := range texts {
		n += len(strings.Fields(t))
	}
	return max(n, 1)
}
