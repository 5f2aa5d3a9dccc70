package middleware

// MaxIdentities bounds the buckets of one limit, for tests.
const MaxIdentities = maxIdentities
