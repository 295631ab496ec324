// Package authn turns a credential into a tenancy.Principal. Today's
// credentials are API keys listed in a tenants file.
//
// A key reads slk_<id>_<secret>. The id is public and finds the record; the
// secret is 256 random bits in base64url, of which the file holds only the
// SHA-256. An unknown id costs the same hash and the same constant-time
// comparison as a known one. No error, log line or String method of this
// package contains any part of a credential.
package authn
