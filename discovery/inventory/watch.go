package inventory

import (
	"context"
	"path/filepath"

	"directx-nri/discovery/history"
	"directx-nri/internal/filewatch"
)

// Watch calls changed after each change of the device list, until ctx ends;
// it then returns nil. It never gives up: while the file's folder is not there
// or cannot be watched, it looks at the file twice a second.
//
// No change is missed between [Source.Devices] and Watch: when the list is
// another already than the one that was answered first, changed is called at
// once. A file that turns bad changes no list and is only logged.
func (s *Source) Watch(ctx context.Context, changed func()) error {
	told := history.Since(s.state.Load().list())
	filewatch.Run(ctx, filewatch.Options{
		Folder: filepath.Dir(s.path), Timing: s.timing,
		Look: func(bool) {
			st, err := s.look(ctx)
			if err != nil { // ctx has ended, which ends Run
				return
			}
			if told.News(&st.List) {
				changed()
			}
		},
		Trouble: func(err error) {
			s.log.WithError(err).Warn("The inventory file's folder cannot be watched; the file is looked at twice a second instead")
		},
	})
	return nil
}
