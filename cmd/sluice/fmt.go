package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// stdinName stands for standard input among file names.
const stdinName = "-"

// fmtOptions say what becomes of a formatted text.
type fmtOptions struct {
	write bool // back to its file
	check bool // nothing: only whether it would change
}

func (c *cli) fmtCommand() *cobra.Command {
	var o fmtOptions
	cmd := &cobra.Command{
		Use:   "fmt [-w|--check] [FILE...|-]",
		Short: "Format configuration files",
		Long: `Prints each file in the one layout that there is; comments stay. Without FILE that of --config, with - standard
input. A file with syntax errors is left alone and reported.`,
		RunE: func(_ *cobra.Command, files []string) error {
			if o.write && o.check {
				return usagef("-w and --check exclude each other")
			}
			if len(files) == 0 {
				files = []string{c.config.path}
			}
			var failed error
			for _, name := range files {
				if o.write && name == stdinName {
					return usagef("standard input cannot be written back")
				}
			}
			for _, name := range files {
				if err := c.format(name, o); err != nil {
					if !errors.Is(err, errTold) {
						fmt.Fprintf(c.err, "sluice: %v\n", err)
					}
					failed = errTold
				}
			}
			return failed
		},
	}
	cmd.Flags().BoolVarP(&o.write, "write", "w", false, "write the result back to the file")
	cmd.Flags().BoolVar(&o.check, "check", false, "print the names of files that would change, and exit 1 if there are any")
	return cmd
}

func (c *cli) format(name string, o fmtOptions) error {
	text, err := c.readText(name)
	if err != nil {
		return err
	}
	title := name
	if name == stdinName {
		title = "standard input"
	}
	formatted, ds := acl.Format(title, text)
	if ds.HasErrors() {
		c.diagnose(ds, map[string][]byte{title: text})
		return errTold
	}
	same := bytes.Equal(text, formatted)
	switch {
	case o.check && same, o.write && same:
		return nil
	case o.check:
		fmt.Fprintln(c.out, title)
		return errTold
	case o.write:
		return replaceFile(name, formatted)
	}
	_, err = c.out.Write(formatted)
	return err
}

func (c *cli) readText(name string) ([]byte, error) {
	in := c.in
	if name != stdinName {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	// One byte more than the language allows, so that what is longer is refused and not cut.
	text, err := io.ReadAll(io.LimitReader(in, acl.MaxDocumentBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return text, nil
}

// replaceFile puts text in the place of a file in one step, so that nobody ever sees half of it. Links stay, and so
// does the mode.
func replaceFile(name string, text []byte) (err error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(real), "."+filepath.Base(real)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = fmt.Errorf("writing %s: %w", name, err)
		}
	}()
	if _, err = f.Write(text); err != nil {
		return err
	}
	if err = f.Chmod(info.Mode().Perm()); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), real)
}
