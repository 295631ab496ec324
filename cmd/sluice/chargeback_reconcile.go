package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// reconcileFlags are what `chargeback reconcile` was asked for.
type reconcileFlags struct {
	config, ledger, period string
	export                 string   // a file that finance has
	metrics                []string // of gateways that run
	token                  string   // file of their admin token, or empty
}

func newReconcileCommand() *cobra.Command {
	var f reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile --period YYYY-MM (--ledger FILE | -c FILE)",
		Short: "Prove that the export, the ledger and the metrics of a month agree",
		Long: "Compare the export of a month (UTC), and what the gateways' metrics have counted, with the ledger's own sums, by\n" +
			"tenant, model, meter and currency, to the last unit. Each difference is one line, and the exit code is then 3.\n\n" +
			"The metrics' side are the notes that each gateway makes in the ledger, every minute and when it stops, of what it\n" +
			"has counted so far: each is compared with exactly the rows that it stands for. How many rows no note stands for\n" +
			"yet, or never will, is said. --metrics compares what a running gateway exports at this moment, too.\n\n" +
			"A ledger that is an archived month has no notes: reconcile a month before it is archived.",
		Example: "  sluice chargeback reconcile -c sluice.yaml --period 2026-11 --export november.csv",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout())
		}),
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.config, "config", "c", "", "configuration file to take the ledger from")
	flags.StringVar(&f.ledger, "ledger", "", "the ledger, an SQLite file")
	flags.StringVar(&f.period, "period", "", "month, as in 2026-11")
	flags.StringVar(&f.export, "export", "", "an export to compare, CSV or JSON; default: one that is made now")
	flags.StringArrayVar(&f.metrics, "metrics", nil, "URL of a running gateway's /metrics, whose series are compared, too; may be given again")
	flags.StringVar(&f.token, "token-file", "", "file with the admin token, where /metrics asks for it")
	markRequired(cmd, "period")
	cmd.MarkFlagsOneRequired("config", "ledger")
	cmd.MarkFlagsMutuallyExclusive("config", "ledger")
	return cmd
}

func (f *reconcileFlags) run(ctx context.Context, stdout io.Writer) error {
	if _, _, err := periodOf(f.period); err != nil {
		return err
	}
	// Before the ledger is read: what is counted by now is in it.
	scrapes := make([]*chargeback.Scrape, len(f.metrics))
	token := ""
	if f.token != "" {
		var err error
		if token, err = readSecretText(f.token); err != nil {
			return fmt.Errorf("cannot read --token-file: %w", err)
		}
	}
	for i, url := range f.metrics {
		var err error
		if scrapes[i], err = scrape(ctx, url, token); err != nil {
			return err
		}
	}
	reader, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	books, err := reader.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer books.Close()
	text, err := f.exported(ctx, books)
	if err != nil {
		return err
	}
	r, err := chargeback.Reconcile(ctx, books, f.period, text)
	if err != nil {
		return err
	}
	differences := len(r.Differences)
	for _, d := range r.Differences {
		fmt.Fprintf(stdout, "%s: %s\n", f.period, d)
	}
	for i, s := range scrapes {
		list, err := chargeback.CompareLive(ctx, books, s)
		if err != nil {
			return fmt.Errorf("%s: %w", f.metrics[i], err)
		}
		differences += len(list)
		for _, d := range list {
			fmt.Fprintf(stdout, "%s: %s\n", f.metrics[i], d)
		}
		if len(list) == 0 {
			fmt.Fprintf(stdout, "%s: the metrics equal the ledger's rows of process %s.\n", f.metrics[i], s.Process)
		}
	}
	writeReconciled(stdout, r)
	if differences > 0 {
		fmt.Fprintf(stdout, "%s: %s.\n", f.period, count(differences, "difference"))
		return errFound
	}
	return nil
}

// writeReconciled says what was compared.
func writeReconciled(w io.Writer, r *chargeback.Reconciliation) {
	if len(r.Differences) == 0 {
		fmt.Fprintf(w, "%s: the export equals the ledger, %s.\n", r.Period, count(int(r.Rows), "row"))
	}
	if r.Processes == 0 {
		fmt.Fprintf(w, "%s: no gateway has noted what its metrics have counted; they are not compared.\n", r.Period)
	} else if len(r.Differences) == 0 {
		fmt.Fprintf(w, "%s: the metrics equal the ledger in %s that %s counted.\n",
			r.Period, count(int(r.Counted), "row"), countOf(int(r.Processes), "process has", "processes have"))
	}
	for _, of := range []struct {
		n   int64
		why string
	}{
		{r.Corrections, "corrections: metrics count none"},
		{r.Recovered, "lost, or put back by hand: no gateway has counted them"},
		{r.Later, "later than the last note of the gateway that made them, or of a version that makes none"},
	} {
		if of.n > 0 {
			fmt.Fprintf(w, "%s: %s not compared with the metrics: %s.\n", r.Period, countOf(int(of.n), "row is", "rows are"), of.why)
		}
	}
}

func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func (f *reconcileFlags) open(ctx context.Context) (*ledger.Reader, error) {
	if f.ledger != "" {
		return fileReader(ctx, f.ledger)
	}
	cfg, _, err := LoadConfig(f.config)
	if err != nil {
		return nil, err
	}
	return booksReader(ctx, &cfg.Ledger)
}

// exported is the export that is compared. What it says beside the figures does not
// matter here.
func (f *reconcileFlags) exported(ctx context.Context, books *ledger.Snapshot) ([]byte, error) {
	if f.export != "" {
		text, err := os.ReadFile(f.export)
		if err != nil {
			return nil, fmt.Errorf("cannot read the export: %w", err)
		}
		return text, nil
	}
	s, err := chargeback.NewStatement(ctx, books, f.period, chargeback.DefaultTerms(), chargeback.PeriodOpen)
	if err != nil {
		return nil, err
	}
	return s.CSV()
}

// scrapeTimeout is for a gateway to answer.
const scrapeTimeout = 15 * time.Second

func scrape(ctx context.Context, from, token string) (*chargeback.Scrape, error) {
	u, err := url.Parse(from)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, &usageError{"--metrics should be a URL without credentials, like http://127.0.0.1:9090/metrics"}
	}
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot read the metrics: %w", err)
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot read the metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("cannot read the metrics of %s: the admin token is required; give its file with --token-file", from)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cannot read the metrics of %s: it answers with status %d", from, resp.StatusCode)
	}
	s, err := chargeback.ReadScrape(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return s, nil
}
