package atelet_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/internal/atelet"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// The messages between agent and worker are written down on both sides, since neither may link the other. Here they are
// compared: what one says with every member set, the other reads whole.
func TestMessagesAreTheWorkers(t *testing.T) {
	for _, c := range []struct{ says, reads any }{
		{new(atelet.WorkerOrder), new(worker.Order)},
		{new(atelet.CertificateAnswer), new(worker.CertificateAnswer)},
		{new(worker.CertificateRequest), new(atelet.CertificateAsk)},
		{new(worker.About), new(atelet.WorkerAbout)},
		{&[]worker.Stay{{}}, new([]atelet.WorkerStay)},
		{&[]worker.Ended{{}}, new([]atelet.WorkerEnded)},
	} {
		fill(reflect.ValueOf(c.says).Elem())
		said, err := json.Marshal(c.says)
		if err != nil {
			t.Fatal(err)
		}
		d := json.NewDecoder(bytes.NewReader(said))
		d.DisallowUnknownFields()
		if err := d.Decode(c.reads); err != nil {
			t.Errorf("%T: %v: %s", c.says, err, said)
		}
		read, err := json.Marshal(c.reads)
		if err != nil || !bytes.Equal(said, read) {
			t.Errorf("%T says %s\nand %T has read %s (%v)", c.says, said, c.reads, read, err)
		}
	}
}

// fill sets everything that can be set to something that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.CanInterface() {
			if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
				_ = u.UnmarshalText([]byte("203.0.113.7"))
				return
			}
		}
		for i := range v.NumField() {
			if f := v.Field(i); v.Type().Field(i).Anonymous || f.CanSet() {
				fill(f)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte("bytes"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(7)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	}
}
