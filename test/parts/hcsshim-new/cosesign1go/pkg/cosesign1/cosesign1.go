// Package cosesign1 declares what runhcs requires of the package of this name, whose
// version the module proxy does not have. runhcs calls it for the security policy of
// confidential containers only, and there it fails.
package cosesign1

import (
	"crypto"
	"errors"
)

const COSE_Header_CWTClaims = 15

var errMissing = errors.New("this runhcs is built without cosesign1go")

type UnpackedCoseSign1 struct {
	Issuer, Feed, ContentType, ChainPem string
	Payload                             []byte
	Protected                           map[any]any
	Receipts                            []ParsedCOSEReceipt
}

type ParsedCOSEReceipt struct{}

func UnpackAndValidateCOSE1CertChain([]byte) (*UnpackedCoseSign1, error) { return nil, errMissing }

func ParseTTLPayload([]byte) (map[string]map[string]crypto.PublicKey, error) { return nil, errMissing }
