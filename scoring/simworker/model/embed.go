// Package model holds the tokenizer and the chat template of the demo model,
// which the simulated workers serve. train.py makes the tokenizer.
package model

import "embed"

// FS holds tokenizer.json, tokenizer_config.json and chat_template.jinja at its
// root, as tokenize.LoadFS reads them.
//
//go:embed tokenizer.json tokenizer_config.json chat_template.jinja
var FS embed.FS
