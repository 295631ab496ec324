package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// shape is what differs between protocols.
type shape struct {
	path string
	// maxText is the default of Config.MaxText, batch how many pieces one request
	// carries.
	maxText, batch int
	// encode makes the body of a request.
	encode func(c *Config, pieces []piece) any
	// decode reads an answer about the pieces and reports each finding that
	// counts. It fails unless every piece was judged.
	decode func(c *Config, body []byte, pieces []piece, found func(f finding)) error
}

// finding is what a detector says about a text.
type finding struct {
	name string
	// placed findings have a place in the whole text, in code points, so that one
	// in the overlap of two pieces is known to be one.
	placed     bool
	start, end int
}

var shapes = map[string]shape{
	Presidio:   {path: "/analyze", maxText: 50_000, batch: 1, encode: encodePresidio, decode: decodePresidio},
	Moderation: {path: "/v1/moderations", maxText: 30_000, batch: 16, encode: encodeInput, decode: decodeModeration},
	Classify:   {path: "/classify", maxText: 500, batch: 32, encode: encodeInput, decode: decodeClassify},
}

// presidioRequest is the body of POST /analyze.
type presidioRequest struct {
	Text           string   `json:"text"`
	Language       string   `json:"language"`
	ScoreThreshold float64  `json:"score_threshold"`
	Entities       []string `json:"entities,omitempty"`
}

func encodePresidio(c *Config, pieces []piece) any {
	return presidioRequest{Text: pieces[0].text, Language: c.Language, ScoreThreshold: c.Threshold, Entities: c.Entities}
}

// presidioFinding is an element of the answer to POST /analyze. Offsets count
// code points. The answer's other fields are explanations.
type presidioFinding struct {
	EntityType *string  `json:"entity_type"`
	Start      *int     `json:"start"`
	End        *int     `json:"end"`
	Score      *float64 `json:"score"`
}

func decodePresidio(c *Config, body []byte, pieces []piece, found func(f finding)) error {
	var answer []presidioFinding
	if err := decodeJSON(body, &answer); err != nil {
		return err
	}
	if answer == nil {
		return errors.New("the answer is null, should be a list of findings")
	}
	for i, f := range answer {
		switch {
		case f.EntityType == nil || *f.EntityType == "":
			return fmt.Errorf("finding %d has no entity_type", i)
		case f.Score == nil:
			return fmt.Errorf("finding %d has no score", i)
		case f.Start == nil || f.End == nil || *f.Start < 0 || *f.End < *f.Start:
			return fmt.Errorf("finding %d has no place in the text", i)
		}
		if *f.Score >= c.Threshold {
			found(finding{name: *f.EntityType, placed: true, start: pieces[0].start + *f.Start, end: pieces[0].start + *f.End})
		}
	}
	return nil
}

// inputRequest is the body of POST /v1/moderations and of vLLM's POST
// /classify. Several texts are judged one by one.
type inputRequest struct {
	Model string   `json:"model,omitempty"`
	Input []string `json:"input"`
}

func encodeInput(c *Config, pieces []piece) any {
	r := inputRequest{Model: c.Model, Input: make([]string, len(pieces))}
	for i := range pieces {
		r.Input[i] = pieces[i].text
	}
	return r
}

// moderationAnswer is the answer to POST /v1/moderations. A category that the
// model does not judge can be null.
type moderationAnswer struct {
	Results []struct {
		Categories     map[string]*bool    `json:"categories"`
		CategoryScores map[string]*float64 `json:"category_scores"`
	} `json:"results"`
}

func decodeModeration(c *Config, body []byte, pieces []piece, found func(f finding)) error {
	var answer moderationAnswer
	if err := decodeJSON(body, &answer); err != nil {
		return err
	}
	if len(answer.Results) != len(pieces) {
		return fmt.Errorf("the answer has %d results for %d texts", len(answer.Results), len(pieces))
	}
	for i, r := range answer.Results {
		judged := false
		for name, flagged := range r.Categories {
			if flagged == nil {
				continue
			}
			judged = true
			// Where there is a threshold, the score decides if it is known.
			if score := r.CategoryScores[name]; c.Threshold > 0 && score != nil {
				continue
			}
			if *flagged {
				found(finding{name: name})
			}
		}
		for name, score := range r.CategoryScores {
			if score == nil {
				continue
			}
			judged = true
			if c.Threshold > 0 && *score >= c.Threshold {
				found(finding{name: name})
			}
		}
		if !judged {
			return fmt.Errorf("result %d judges no category", i)
		}
		if c.Threshold == 0 && len(r.Categories) == 0 {
			return fmt.Errorf("result %d flags no category either way, and there is no threshold for its scores", i)
		}
	}
	return nil
}

// classifyAnswer is the answer to vLLM's POST /classify. label is that of the
// likeliest class, null where the model's configuration has no name for it.
type classifyAnswer struct {
	Data []struct {
		Index *int      `json:"index"`
		Label *string   `json:"label"`
		Probs []float64 `json:"probs"`
	} `json:"data"`
}

func decodeClassify(c *Config, body []byte, pieces []piece, found func(f finding)) error {
	var answer classifyAnswer
	if err := decodeJSON(body, &answer); err != nil {
		return err
	}
	if len(answer.Data) != len(pieces) {
		return fmt.Errorf("the answer has %d results for %d texts", len(answer.Data), len(pieces))
	}
	seen := make([]bool, len(pieces))
	for i, d := range answer.Data {
		if d.Index == nil || *d.Index < 0 || *d.Index >= len(pieces) || seen[*d.Index] {
			return fmt.Errorf("result %d has no index of its own", i)
		}
		seen[*d.Index] = true
		if d.Label == nil {
			return fmt.Errorf("result %d has no label: the model's configuration does not name its classes (id2label)", i)
		}
		if len(d.Probs) == 0 {
			return fmt.Errorf("result %d has no probabilities", i)
		}
		highest := math.Inf(-1)
		for _, p := range d.Probs {
			if p < 0 || p > 1 {
				return fmt.Errorf("result %d has probabilities beyond 0 and 1: the server gives raw scores", i)
			}
			highest = max(highest, p)
		}
		if highest >= c.Threshold {
			found(finding{name: *d.Label})
		}
	}
	return nil
}

// decodeJSON reads one JSON value and nothing after it. The error does not
// quote the text.
func decodeJSON(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	err := d.Decode(into)
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its text can quote a number
		return errors.New("the answer does not have the form of its shape")
	}
	if err != nil {
		return errors.New("the answer is no JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the answer goes on after its JSON")
	}
	return nil
}
