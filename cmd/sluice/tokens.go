package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

// maxTokensBody bounds what `sluice tokens` reads: the gateway's own default for a body.
const maxTokensBody = 32 << 20

// beginningOnly tells of a prompt that goes on with something that is not text.
const beginningOnly = "the beginning only: what follows is not text, and its ids are the worker's"

func newTokensCommand() *cobra.Command {
	var dir string
	var explain bool
	cmd := &cobra.Command{
		Use:   "tokens --tokenizer DIR < request.json",
		Short: "Print the token ids that the gateway computes for a request",
		Long: "Print the token ids that the gateway computes for a chat completions or completions body, which is read\n" +
			"from standard input: a JSON array, or an array of arrays when the body has several prompts. Compare them\n" +
			"with the worker's own (POST /tokenize) when routing looks wrong.",
		Args: cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			body, err := readRequest(cmd.InOrStdin())
			if err != nil {
				return err
			}
			kind, err := kindOfBody(body)
			if err != nil {
				return err
			}
			tok, err := tokenize.Load(dir, tokenize.Options{})
			if err != nil {
				return err
			}
			defer tok.Close()
			if explain {
				return writeExplanation(cmd.OutOrStdout(), tok, kind, body)
			}
			return writeTokens(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), tok, kind, body)
		}),
	}
	cmd.Flags().StringVar(&dir, "tokenizer", "", "folder with tokenizer.json and tokenizer_config.json")
	cmd.Flags().BoolVar(&explain, "explain", false, "show the rendered prompt and its segments, each with its ids")
	markRequired(cmd, "tokenizer")
	return cmd
}

func readRequest(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxTokensBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the request: %w", err)
	case len(body) > maxTokensBody:
		return nil, fmt.Errorf("the request on standard input is larger than %s", ByteSize(maxTokensBody))
	case len(strings.TrimSpace(string(body[:min(len(body), 64)]))) == 0:
		return nil, errors.New("standard input is empty, should be the JSON body of a chat completions or completions request")
	}
	return body, nil
}

// kindOfBody tells a chat body from a completions body by the key only one of them has.
func kindOfBody(body []byte) (tokenize.Kind, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(body, &keys); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return 0, fmt.Errorf("the request is not JSON: at byte %d: %w", syntax.Offset, err)
		}
		return 0, errors.New("the request is not a JSON object")
	}
	_, chat := keys["messages"]
	_, completion := keys["prompt"]
	switch {
	case chat && completion:
		return 0, errors.New(`the request has both "messages" and "prompt", should have one of them`)
	case chat:
		return tokenize.Chat, nil
	case completion:
		return tokenize.Completion, nil
	}
	return 0, errors.New(`the request has neither "messages" (chat) nor "prompt" (completions)`)
}

func writeTokens(ctx context.Context, w, notes io.Writer, tok *tokenize.Tokenizer, kind tokenize.Kind, body []byte) error {
	var prompts tokenize.Prompts
	if err := tok.Append(ctx, &prompts, kind, body); err != nil {
		return err
	}
	if prompts.Beginning {
		fmt.Fprintln(notes, "sluice: "+beginningOnly)
	}
	all := make([][]uint32, prompts.Len())
	for i := range all {
		all[i] = append([]uint32{}, prompts.At(i)...)
	}
	if len(all) == 1 {
		return json.NewEncoder(w).Encode(all[0])
	}
	return json.NewEncoder(w).Encode(all)
}

func writeExplanation(w io.Writer, tok *tokenize.Tokenizer, kind tokenize.Kind, body []byte) error {
	ex, err := tok.Explain(kind, body)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for i, p := range ex.Prompts {
		total := 0
		for _, s := range p.Segments {
			total += len(s.IDs)
		}
		fmt.Fprintf(out, "prompt %d of %d: %s in %s\n", i+1, len(ex.Prompts), count(total, "token"), count(len(p.Segments), "segment"))
		if p.Beginning {
			fmt.Fprintln(out, beginningOnly)
		}
		if p.Text != "" {
			fmt.Fprintf(out, "rendered:\n")
			for line := range strings.SplitSeq(p.Text, "\n") {
				fmt.Fprintf(out, "  | %s\n", line)
			}
		}
		fmt.Fprintf(out, "segments:\n")
		for _, s := range p.Segments {
			kind := "text"
			if s.Special {
				kind = "special"
			}
			fmt.Fprintf(out, "  %-7s %q %v\n", kind, s.Text, s.IDs)
		}
	}
	return out.Flush()
}
