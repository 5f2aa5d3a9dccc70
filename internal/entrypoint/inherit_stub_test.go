package entrypoint_test

const successorEnv = "X"

func successor() int { return 0 }
