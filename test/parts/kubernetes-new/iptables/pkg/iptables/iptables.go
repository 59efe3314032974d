// Package iptables stands in for the one that the kubelet imports, which the module proxy does not have. This
// node has no iptables, so the kubelet makes no rules.
package iptables

import (
	"context"
	"time"
)

type (
	Chain        string
	Table        string
	Protocol     string
	RulePosition string
	Mode         string
)

const (
	TableMangle Table = "mangle"
	TableNAT    Table = "nat"
	TableFilter Table = "filter"

	ChainInput  Chain = "INPUT"
	ChainOutput Chain = "OUTPUT"

	Append  RulePosition = "-A"
	Prepend RulePosition = "-I"

	UseInstalledMode Mode = ""
)

// Interface has the methods that the kubelet calls.
type Interface interface {
	EnsureChain(ctx context.Context, table Table, chain Chain) (bool, error)
	EnsureRule(ctx context.Context, position RulePosition, table Table, chain Chain, args ...string) (bool, error)
	IsIPv6() bool
	Protocol() Protocol
	Monitor(ctx context.Context, canary Chain, tables []Table, reload func(), interval time.Duration)
}

// NewBestEffort returns the clients of this node: none.
func NewBestEffort(context.Context, Mode) map[Protocol]Interface { return nil }
