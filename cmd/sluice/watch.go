package main

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluicegate/sluice/scoring/discovery/folders"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

const (
	// settle is how long files have to stay as they are before they are believed: a file that is being
	// written may read as a shorter one, and a change may be of several files.
	settle = 100 * time.Millisecond
	// settleMost bounds the wait for files that change all the time. What is loaded then is still checked as
	// a whole.
	settleMost = 2 * time.Second
	// maxSourceBytes bounds what is read of one file to find out whether it has changed: more than any of
	// them may have.
	maxSourceBytes = 64 << 20
	// maxSourceFiles bounds the files of a folder of policies that are looked at, against the wrong folder
	// being named.
	maxSourceFiles = 20_000
)

// sources are the files and folders that a generation is made of.
type sources struct {
	files   []string
	folders []string // of policies, read recursively
}

// sourcesOf returns what a configuration names of what can be reloaded, and the configuration's own file
// unless that is empty.
func sourcesOf(configFile string, cfg *Config) sources {
	s := sources{folders: []string{cfg.Policy.Dir}}
	for _, file := range []string{configFile, cfg.Tenants.File, cfg.Prices.File, cfg.CacheIsolation.KeyFile} {
		if file != "" {
			s.files = append(s.files, file)
		}
	}
	s.files = append(s.files, cfg.Identity.files()...)
	s.files = append(s.files, cfg.Listen.Public.TLS.sources()...)
	s.files = append(s.files, cfg.Listen.Admin.TLS.sources()...)
	for i := range cfg.Labels.External {
		if file := cfg.Labels.External[i].APIKeyFile; file != "" {
			s.files = append(s.files, file)
		}
	}
	return s.and(sources{})
}

// filesOf returns every file that a configuration names but those that change by themselves: all are
// checked whenever it is loaded.
func filesOf(cfg *Config) (s sources) {
	for _, p := range cfg.paths() {
		if *p.value != "" && !p.isDir && !strings.HasSuffix(p.key, ".workersFrom.file") {
			s.files = append(s.files, *p.value)
		}
	}
	return s
}

// and returns what is in either of the two, each once and in order.
func (s sources) and(more sources) sources {
	union := func(a, b []string) []string { return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b)))) }
	return sources{files: union(s.files, more.files), folders: union(s.folders, more.folders)}
}

// irregular returns an error for every file that is there and is no ordinary one, a line each. To read one
// could take for ever.
func (s sources) irregular() error {
	var errs []error
	for _, file := range s.files {
		f, err := plainfile.Open(file)
		switch {
		case err == nil:
			_ = f.Close() // it was only looked at
		case errors.Is(err, plainfile.ErrIrregular):
			errs = append(errs, fmt.Errorf("cannot read a file: %w", err))
		}
	}
	return errors.Join(errs...)
}

// fingerprint is equal for equal content of all sources. It is no secret: it is compared and never shown.
type fingerprint [sha256.Size]byte

// fingerprint reads everything. What can't be read counts as its error, so that its coming back is a
// change.
func (s sources) fingerprint() fingerprint {
	h := sha256.New()
	for _, file := range s.files {
		hashFile(h, file)
	}
	for _, folder := range s.folders {
		for _, file := range policySources(folder, h) {
			hashFile(h, file)
		}
	}
	return fingerprint(h.Sum(nil))
}

// policySources lists the files of a folder that the policy loader reads, and writes to h what keeps it
// from doing so. Like the loader it leaves out hidden names, among them the folders through which Kubernetes
// turns a mounted ConfigMap.
func policySources(folder string, h hash.Hash) (files []string) {
	walkFolder(folder, func(path string, d fs.DirEntry, err error) error {
		switch ext := filepath.Ext(path); {
		case err != nil:
			writeField(h, path)
			writeField(h, err.Error())
		case len(files) >= maxSourceFiles:
			writeField(h, "too many files")
			return fs.SkipAll
		case linksToFolder(path, d):
			writeField(h, "not followed: "+path)
		case !d.IsDir() && (ext == ".yaml" || ext == ".yml"):
			files = append(files, path)
		}
		return nil
	})
	return files
}

// walkFolder calls visit for everything under a folder but hidden names. The folder itself may be a link, and
// like the loader it follows links in it to folders, but none inside of those.
func walkFolder(folder string, visit fs.WalkDirFunc) { walkFrom(folder, false, visit) }

func walkFrom(folder string, linked bool, visit fs.WalkDirFunc) {
	root := folder + string(filepath.Separator) + "." // follows a link
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if path != root && strings.HasPrefix(filepath.Base(path), ".") {
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err == nil && !linked && linksToFolder(path, d) {
			walkFrom(path, true, visit)
			return nil
		}
		return visit(filepath.Clean(path), d, err)
	})
}

func linksToFolder(path string, d fs.DirEntry) bool {
	if d.Type()&fs.ModeSymlink == 0 {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func hashFile(h hash.Hash, path string) {
	writeField(h, path)
	f, err := plainfile.Open(path)
	if err != nil {
		// The text without the path: it is the same for the same state of things.
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
		writeField(h, "error "+err.Error())
		return
	}
	defer f.Close()
	content := sha256.New()
	if _, err := io.Copy(content, io.LimitReader(f, maxSourceBytes)); err != nil {
		writeField(h, "error reading")
		return
	}
	h.Write(content.Sum(nil))
}

func writeField(h hash.Hash, text string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(text)))
	h.Write(n[:])
	_, _ = io.WriteString(h, text)
}

// settling decides when a change of files is to be acted on. It knows no clock.
type settling struct {
	told    fingerprint // what was last acted on
	seen    fingerprint // what was last looked at, while pending
	pending bool
	since   time.Time // of the first look at a change
}

// look takes in what the files are now. It returns how long to wait before looking again, 0 if there is
// nothing to wait for, and whether to act.
func (s *settling) look(is fingerprint, now time.Time) (wait time.Duration, act bool) {
	if is == s.told {
		s.pending = false
		return 0, false
	}
	if !s.pending {
		s.pending, s.since = true, now
	} else if is == s.seen || now.Sub(s.since) >= settleMost {
		s.pending = false
		return 0, true
	}
	s.seen = is
	return settle, false
}

// folderWatch is told by the file system when something changes near a set of sources. It only hastens
// things: what has changed is found by looking, and not every file system tells.
type folderWatch struct {
	notify  *folders.Watch // nil: the system can't tell
	log     *slog.Logger
	watched map[string]bool // folders
	names   map[string]bool // of files and folders that matter, wherever they are
	trees   []string        // folders in which every name matters
}

// newFolderWatch returns a watch that is told of nothing yet. Close releases it.
func newFolderWatch(log *slog.Logger) *folderWatch {
	w := &folderWatch{log: log, watched: make(map[string]bool)}
	notify, err := folders.New()
	if err != nil {
		log.Warn("the system can't tell of changed files, looking at them from time to time instead", "error", err)
		return w
	}
	w.notify = notify
	return w
}

// Close ends the watch.
func (w *folderWatch) Close() error {
	if w.notify == nil {
		return nil
	}
	return w.notify.Close()
}

// events returns the channels of the watch; both are nil if there is none.
func (w *folderWatch) events() (changed <-chan string, missed <-chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Changed, w.notify.Missed
}

// follow sets what is watched: the folder of every file and of what it links to, and every folder of
// policies with what is below it. It is called again after each look, since folders come and go. It reports
// whether there are folders that were not watched before: what changed there so far was not told.
func (w *folderWatch) follow(s sources) (more bool) {
	if w.notify == nil {
		return false
	}
	w.names, w.trees = make(map[string]bool), nil
	folders := make(map[string]bool)
	near := func(path string) {
		w.names[filepath.Base(path)] = true
		folders[filepath.Dir(path)] = true
		if target, err := filepath.EvalSymlinks(path); err == nil {
			w.names[filepath.Base(target)] = true
			folders[filepath.Dir(target)] = true
		}
	}
	for _, file := range s.files {
		near(file)
	}
	for _, folder := range s.folders {
		near(folder)
		walkFolder(folder, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && len(folders) < maxSourceFiles {
				folders[path] = true
			}
			return nil
		})
		w.trees = append(w.trees, filepath.Clean(folder))
	}
	return w.set(folders)
}

// set watches those folders and no others. It reports whether some are new.
func (w *folderWatch) set(folders map[string]bool) (more bool) {
	for folder := range w.watched {
		if !folders[folder] {
			w.notify.Remove(folder)
			delete(w.watched, folder)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		// Also those that are watched: a folder that was replaced by another one is watched anew.
		err := w.notify.Add(folder)
		if err == nil {
			more = more || !w.watched[folder]
			w.watched[folder] = true
			continue
		}
		if w.watched[folder] || !errors.Is(err, fs.ErrNotExist) {
			w.log.Debug("cannot watch a folder, looking at it from time to time instead", "folder", folder, "error", err)
		}
		delete(w.watched, folder)
	}
	return more
}

// concerns reports whether a change of a file may be about the sources. Databases and logs in the same folder, and
// the temporary files of editors, are not.
func (w *folderWatch) concerns(path string) bool {
	name := filepath.Base(path)
	switch {
	case name == "..data":
		return true // the link through which Kubernetes turns all files of a volume at once
	case w.names[name]:
		return true
	case strings.HasPrefix(name, "."):
		return false
	}
	folder := filepath.Dir(path)
	return slices.ContainsFunc(w.trees, func(tree string) bool {
		return folder == tree || tree == "." && !filepath.IsAbs(folder) || strings.HasPrefix(folder, tree+string(filepath.Separator))
	})
}
