package entrypoint

// stackReserve makes a stack of 4 KiB, about as deep as it gets while a request is served. A goroutine begins with
// 2 KiB, and each doubling on the way copies the stack and walks every frame on it.
const stackReserve = 1280

// growStack makes the stack large enough at once, while there is nothing on it yet.
//
//go:noinline
func growStack() byte {
	var room [stackReserve]byte
	return room[stackAt]
}

var stackAt int // always 0; the compiler does not know
