package main

import (
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/policy"
)

func newPolicyEnvCommand() *cobra.Command {
	var configFile string
	cmd := &cobra.Command{
		Use:   "env [-c FILE]",
		Short: "Print what expressions can read and call, and their limits",
		Long: "Print the variables, functions, libraries with their versions, and limits of policy expressions, as YAML.\n" +
			"With a configuration the claims that it declares are among the variables.",
		Args: cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			var claims map[string]string
			if configFile != "" {
				cfg, _, err := LoadConfig(configFile)
				if err != nil {
					return err
				}
				claims = cfg.Policy.Claims
			}
			env, err := policy.Environment(claims)
			if err != nil {
				return err
			}
			text, err := yaml.Marshal(envDocument(env))
			if err != nil {
				return fmt.Errorf("cannot write the environment: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}),
	}
	cmd.Flags().StringVarP(&configFile, "config", "c", "", "configuration file, for its claims")
	return cmd
}

// The form of `policy env`. It grows by fields only.
type (
	envOutput struct {
		Format    string         `yaml:"format"`
		Evaluator string         `yaml:"evaluator"`
		Libraries map[string]int `yaml:"libraries"`
		Options   []string       `yaml:"options"`
		Limits    []envLimit     `yaml:"limits"`
		Variables []envVariable  `yaml:"variables"`
		Macros    []string       `yaml:"macros"`
		Functions []envFunction  `yaml:"functions"`
	}
	envLimit struct {
		Name  string `yaml:"name"`
		Value int64  `yaml:"value"`
		Unit  string `yaml:"unit,omitempty"`
	}
	envVariable struct {
		Name   string `yaml:"name"`
		Type   string `yaml:"type"`
		Lazy   bool   `yaml:"lazy,omitempty"`
		Client bool   `yaml:"clientText,omitempty"`
		In     string `yaml:"readableIn,omitempty"`
		Most   int    `yaml:"max,omitempty"`
		Elem   int    `yaml:"maxElement,omitempty"`
	}
	envFunction struct {
		Name      string   `yaml:"name"`
		Overloads []string `yaml:"overloads"`
	}
)

func envDocument(env *policy.EnvInfo) *envOutput {
	out := &envOutput{Format: env.Format, Evaluator: env.Evaluator, Libraries: map[string]int{}, Options: env.Options, Macros: env.Macros}
	for _, l := range env.Libraries {
		out.Libraries[l.Name] = l.Version
	}
	for _, l := range env.Limits {
		out.Limits = append(out.Limits, envLimit{l.Name, l.Value, l.Unit})
	}
	for _, v := range env.Variables {
		e := envVariable{Name: v.Name, Type: v.Type, Lazy: v.Lazy, Client: v.ClientText, In: v.ReadableIn, Elem: v.Elem}
		if v.Size > 1 {
			e.Most = v.Size
		}
		out.Variables = append(out.Variables, e)
	}
	for _, f := range env.Functions {
		out.Functions = append(out.Functions, envFunction{f.Name, f.Overloads})
	}
	return out
}
