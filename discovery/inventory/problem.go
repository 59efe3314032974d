package inventory

import "directx-nri/internal/strictyaml"

// Problem is one thing that is wrong with an inventory file.
type Problem = strictyaml.Problem

// Problems is everything that is wrong with an inventory file, in the order of
// lines, never empty. It is the error that [Parse] returns.
type Problems = strictyaml.Problems
