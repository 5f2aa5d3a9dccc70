package demo

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"math"
	"net/http"
	"strings"
	"unicode"
)

const (
	defaultDimensions = 256
	maxDimensions     = 4096
)

type embeddingsRequest struct {
	Model          string          `json:"model"`
	Input          json.RawMessage `json:"input"`
	EncodingFormat *string         `json:"encoding_format"`
	Dimensions     *int            `json:"dimensions"`
}

type embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // []float32, or a base64 string
}

type embeddingsAnswer struct {
	Object string      `json:"object"`
	Data   []embedding `json:"data"`
	Model  string      `json:"model"`
	Usage  struct {
		PromptTokens int `json:"prompt_tokens"`
		TotalTokens  int `json:"total_tokens"`
	} `json:"usage"`
}

func (b *Backend) serveEmbeddings(w http.ResponseWriter, r *http.Request) {
	var req embeddingsRequest
	err := readJSON(w, r, &req)
	if err == nil {
		err = b.checkModel(req.Model)
	}
	var answer *embeddingsAnswer
	if err == nil {
		answer, err = embed(&req)
	}
	if err != nil {
		b.refuse(w, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

func embed(req *embeddingsRequest) (*embeddingsAnswer, error) {
	inputs, err := texts(req.Input)
	if err != nil {
		return nil, invalid("input", "input %v", err)
	}
	if len(inputs) > maxInputs {
		return nil, invalid("input", "input holds %d texts, at most %d are allowed", len(inputs), maxInputs)
	}
	dimensions := defaultDimensions
	if req.Dimensions != nil {
		dimensions = *req.Dimensions
	}
	if dimensions < 1 || dimensions > maxDimensions {
		return nil, invalid("dimensions", "dimensions must be between 1 and %d", maxDimensions)
	}
	if len(inputs)*dimensions > 1<<20 {
		return nil, invalid("input", "texts times dimensions may not exceed %d", 1<<20)
	}
	format := "float"
	if req.EncodingFormat != nil {
		format = *req.EncodingFormat
	}
	if format != "float" && format != "base64" {
		return nil, invalid("encoding_format", "encoding_format must be float or base64")
	}
	out := &embeddingsAnswer{Object: "list", Model: req.Model}
	for i, text := range inputs {
		e := embedding{Object: "embedding", Index: i}
		if v := vector(text, dimensions); format == "float" {
			e.Embedding = v
		} else {
			e.Embedding = encodeVector(v)
		}
		out.Data = append(out.Data, e)
	}
	out.Usage.PromptTokens = countTokens(inputs...)
	out.Usage.TotalTokens = out.Usage.PromptTokens
	return out, nil
}

// vector hashes the words of a text into a vector of length one, so that texts
// with common words point in similar directions and equal texts in the same.
func vector(text string, dimensions int) []float32 {
	sums := make([]float64, dimensions)
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	for _, word := range words {
		h := fnv.New64a()
		_, _ = h.Write([]byte(word)) // a hash accepts everything
		sum := h.Sum64()
		sign := 1.0
		if sum>>63 == 1 {
			sign = -1
		}
		sums[sum%uint64(dimensions)] += sign
	}
	length := 0.0
	for _, x := range sums {
		length += x * x
	}
	if length == 0 { // no words, or words that cancel out
		sums[0], length = 1, 1
	}
	out := make([]float32, dimensions)
	for i, x := range sums {
		out[i] = float32(x / math.Sqrt(length))
	}
	return out
}

// encodeVector writes little-endian 32-bit floats in base64, as the official
// clients expect when they ask for it.
func encodeVector(v []float32) string {
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(raw)
}
