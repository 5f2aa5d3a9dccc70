package acl

import "strings"

// maxSuggestLen bounds the work of Suggest: longer words are no typing errors.
const maxSuggestLen = 64

// Suggest returns the candidate that word was most likely meant to be, or ""
// when none is near. Case, and `-` for `_`, do not count as differences; beyond
// that one edit (a character inserted, dropped, changed, or two swapped) is
// allowed in words of 3 to 5 characters, two up to 8, three above. Of equally
// near candidates the first wins.
func Suggest(word string, candidates []string) string {
	if word == "" || len(word) > maxSuggestLen {
		return ""
	}
	w := suggestKey(word)
	allowed := 3
	switch n := len(w); {
	case n < 3:
		allowed = 0
	case n <= 5:
		allowed = 1
	case n <= 8:
		allowed = 2
	}
	best := ""
	for _, c := range candidates {
		if c == word || len(c) > maxSuggestLen {
			continue
		}
		if d := editDistance(w, suggestKey(c)); d <= allowed {
			if d == 0 {
				return c
			}
			best, allowed = c, d-1
		}
	}
	return best
}

func suggestKey(s string) []rune {
	return []rune(strings.ReplaceAll(strings.ToLower(s), "-", "_"))
}

// editDistance is the optimal string alignment distance: Levenshtein plus
// swaps of neighbours, each stretch edited at most once.
func editDistance(a, b []rune) int {
	prev2 := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	cur := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
