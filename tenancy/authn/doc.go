// Package authn turns a credential into a tenancy.Principal. Today's
// credentials are API keys listed in a tenants file.
//
// A key reads slk_<id>_<secret>. The id is public and finds the record; the
// secret is 256 random bits in base64url, of which the file holds only the
// SHA-256. An unknown id costs the same hash and the same constant-time
// comparison as a known one. No error, log line or String method of this
// package contains any part of a credential.
//
// The tenants file is strict YAML: an unknown or repeated key, a wrong type, an
// anchor, alias or tag is an error with its line and column.
//
//	tenants:
//	  - id: acme                      # required, unique
//	    team: search                  # who pays
//	    tier: gold                    # read by policies
//	    labels: { env: prod }
//	    contentLabels: [internal]     # declared on every request
//	    models: ["qwen-*"]            # globs; left out: all models
//	    disabled: false               # true: 403 to every request
//	    expose: { worker: true, policy: true, overhead: true }
//	    keys:
//	      - id: 7k2m9x4c0qpd          # required, unique in the file
//	        sha256: 9f86d0…           # required, of the secret's text
//	        name: nightly batch
//	        groups: [batch]
//	        scopes: [chat]
//	        models: ["qwen-*"]        # globs, enforced; left out: what the tenant may use
//	        operations: [chat]        # enforced; left out: all
//	        claims: { level: 3 }      # scalars or lists of them
//	        created: 2026-03-01
//	        expires: 2027-03-01T00:00:00Z   # a date means its start in UTC
//	        rotatedFrom: 5h1c…        # the key that this one replaces
//	        disabled: false           # true revokes the key
//
// A Directory is one load of that file. A Live follows the file, a list of revoked
// credentials and a database of keys while the gateway runs, so that a key that is
// revoked in any of them is refused at once.
package authn
