package advertiser

// trouble is what was last seen to be wrong, "" when nothing was. With it a
// state that lasts is logged when it begins and when it ends.
type trouble string

// changes notes err, nil when all is well, and tells whether that is news.
func (t *trouble) changes(err error) bool {
	now := trouble("")
	if err != nil {
		now = trouble(err.Error())
	}
	if now == *t {
		return false
	}
	*t = now
	return true
}
