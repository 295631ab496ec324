package decisionlog

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tidy compresses rotated files and deletes the oldest ones, when it starts and
// after each rotation, until ctx ends. What it leaves undone the next one does.
func (l *Log) tidy(ctx context.Context, rotated <-chan struct{}) {
	for {
		if err := l.tidyOnce(ctx); err != nil && ctx.Err() == nil {
			l.failed("cannot tidy up the decision log's rotated files", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-rotated:
		}
	}
}

func (l *Log) tidyOnce(ctx context.Context) error {
	files, stray, err := rotatedFiles(l.cfg.Path)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range stray {
		errs = append(errs, os.Remove(name))
	}
	// Deleting comes first: a disk that is full has no room for compressed copies.
	if extra := len(files) - l.cfg.MaxFiles; l.cfg.MaxFiles > 0 && extra > 0 {
		for _, name := range files[:extra] {
			errs = append(errs, os.Remove(name))
		}
		files = files[extra:]
	}
	if l.cfg.Compress {
		for _, name := range files {
			if ctx.Err() != nil {
				break
			}
			if !strings.HasSuffix(name, ".gz") {
				errs = append(errs, compress(ctx, name))
			}
		}
	}
	return errors.Join(errs...)
}

// rotatedFiles lists the rotated files of a log, oldest first, and temporary
// files of compressions that were cut short.
func rotatedFiles(path string) (files, stray []string, err error) {
	folder := filepath.Dir(path)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, nil, err
	}
	before, after := splitName(filepath.Base(path))
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), before)
		if !ok || len(rest) < len(stamp) || !e.Type().IsRegular() {
			continue
		}
		if _, err := time.Parse(stamp, rest[:len(stamp)]); err != nil {
			continue
		}
		name := filepath.Join(folder, e.Name())
		switch rest[len(stamp):] {
		case after, after + ".gz":
			files = append(files, name)
		case after + ".gz" + temporary:
			stray = append(stray, name)
		}
	}
	slices.Sort(files)
	// A crash can leave a file beside its compressed form, which may then be
	// replaced: it counts as one.
	files = slices.CompactFunc(files, func(later, earlier string) bool { return later == earlier+".gz" })
	return files, stray, nil
}

// temporary ends the names of unfinished files.
const temporary = ".tmp"

// compress replaces a file by a gzip file, which appears under its name when it
// is whole and durable.
func compress(ctx context.Context, name string) (err error) {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(name+".gz"+temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(out.Name()) // the next tidying removes what stays
			err = fmt.Errorf("cannot compress %s: %w", name, err)
		}
	}()
	z := gzip.NewWriter(out)
	z.Name = filepath.Base(name)
	_, err = io.Copy(z, readerWithin{ctx, in})
	if err = errors.Join(err, z.Close(), out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(out.Name(), name+".gz"); err != nil {
		return err
	}
	return errors.Join(syncFolder(name), os.Remove(name))
}

// readerWithin fails once its context has ended.
type readerWithin struct {
	ctx context.Context
	r   io.Reader
}

func (r readerWithin) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
