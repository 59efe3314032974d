package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Glob returns the paths, relative to dir, of the files below dir that match pattern, a relative Windows
// path whose elements can have * and ?. It follows no links below dir.
func (r Root) Glob(dir, pattern string) (found []string, err error) {
	if dir, _, err = r.Resolve(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	depth := strings.Count(winpath.Clean(pattern), `\`) + 1
	err = fs.WalkDir(os.DirFS(r.localPath(dir)), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir() && path != "." && strings.Count(path, "/")+1 >= depth:
			return fs.SkipDir
		case !entry.IsDir() && winpath.MatchPath(pattern, path):
			found = append(found, winpath.Clean(path))
		}
		return nil
	})
	return found, err
}
