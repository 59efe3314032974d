package advertiser

// errorState is the text of the last error, "" if there was none. With it an error
// that persists is logged once, and so is its end.
type errorState string

// changed records err and reports whether it differs from the last one.
func (s *errorState) changed(err error) bool {
	var now errorState
	if err != nil {
		now = errorState(err.Error())
	}
	changed := now != *s
	*s = now
	return changed
}
