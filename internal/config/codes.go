package config

// The codes of findings. They are stable: tools match on them, and docs/configuration.md lists them all.
const (
	CodeUnknownKey   = "config.unknown_key"                 // an attribute that the block does not have
	CodeUnknownBlock = "config.unknown_block"               // a nested or top-level block that does not exist
	CodeOtherType    = "config.unused_key_of_other_type"    // a key of another middleware type or entrypoint protocol
	CodeLabel        = "config.label"                       // a label too many, or on a block that takes none
	CodeType         = "config.type"                        // a value of the wrong kind
	CodeMissing      = "config.missing"                     // a required key, block or name is absent
	CodeRange        = "config.range"                       // a number, duration or length out of its range
	CodeEnum         = "config.enum"                        // a word that is not among the allowed ones
	CodeValue        = "config.value"                       // the right kind, but not a legal header name, path, UUID, …
	CodeDuplicate    = "config.duplicate"                   // a second definition; both places are named
	CodeConflict     = "config.conflict"                    // two settings that cannot be in force together
	CodeReference    = "config.reference"                   // a name that nothing defines
	CodeRule         = "config.rule"                        // a router rule that does not compile
	CodeAddress      = "config.address"                     // not a listening address, an IP or a CIDR
	CodeURL          = "config.url"                         // not a URL of the needed form
	CodeEnv          = "config.env"                         // env(...) or file(...) that gives no value
	CodeFile         = "config.file"                        // a certificate, key or CA file that cannot be used
	CodeUnsupported  = "config.not_supported_yet"           // known and well-formed, but this release does not run it
	WarnPriority     = "config.warn.path_outranks_host"     // a path rule wins over a longer thought host rule
	WarnNoEffect     = "config.warn.no_effect"              // a definition that changes nothing
	WarnNoTraffic    = "config.warn.no_traffic"             // every server of a service has weight 0
	WarnDuplicate    = "config.warn.duplicate_backend"      // a service with the same backend twice
	WarnMore         = "config.warn.more"                   // how many further warnings are not listed
	WarnExpired      = "config.warn.certificate_expired"    // a certificate out of its validity
	WarnExposed      = "config.warn.management_unprotected" // management reachable from afar without token or client certificate
)
