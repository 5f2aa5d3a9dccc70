package worker

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Rules capture the connections of an actor.
type Rules interface {
	// Install makes every IPv4 TCP connection that comes into a gateway namespace, whatever its destination and port,
	// arrive at CapturePort, and drops what else comes in, but for the answers to connections from inside. Installing
	// over rules of an earlier worker replaces them.
	Install(gateway *fabric.Namespace) error
	// Remove takes the rules away. None there is no error.
	Remove(gateway *fabric.Namespace) error
}

// Kernel is Rules by nftables.
type Kernel struct{}

// tableName is the same in each family, so that whatever is there of us is found.
const tableName = "sluice-actor"

// Install implements Rules.
func (Kernel) Install(gateway *fabric.Namespace) error {
	err := gateway.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		if err := sweep(c); err != nil {
			return err
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName})
		redirect(c, table)
		refuseDatagrams(c, table)
		input(c, table)
		drop := nftables.ChainPolicyDrop
		c.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop,
		})
		return c.Flush() // one transaction, with the sweep
	})
	if err != nil {
		return fmt.Errorf("installing rules in %s: %w", gateway.Name(), err)
	}
	return nil
}

// Remove implements Rules.
func (Kernel) Remove(gateway *fabric.Namespace) error {
	err := gateway.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		if err := sweep(c); err != nil {
			return err
		}
		return c.Flush()
	})
	if err != nil {
		return fmt.Errorf("removing rules from %s: %w", gateway.Name(), err)
	}
	return nil
}

// sweep deletes our table whatever its family: rules that were installed for one family and looked for in another would
// stay, and be stacked up.
func sweep(c *nftables.Conn) error {
	tables, err := c.ListTables()
	if err != nil {
		return err
	}
	for _, t := range tables {
		if t.Name == tableName {
			c.DelTable(t)
		}
	}
	return nil
}

// redirect is: ip daddr != 169.254.17.0/30 tcp redirect to :15001.
func redirect(c *nftables.Conn, table *nftables.Table) {
	chain := c.AddChain(&nftables.Chain{
		Name: "capture", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(
		protocol(unix.IPPROTO_TCP), outside(),
		[]expr.Any{
			&expr.Counter{},
			&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, CapturePort)},
			&expr.Redir{RegisterProtoMin: 1},
		},
	)})
}

// refuseDatagrams is: ip daddr != 169.254.17.0/30 udp reject. Programs that try QUIC first then fall back at once.
func refuseDatagrams(c *nftables.Conn, table *nftables.Table) {
	chain := c.AddChain(&nftables.Chain{
		Name: "refuse", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(
		protocol(unix.IPPROTO_UDP), outside(),
		[]expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}},
	)})
}

const icmpPortUnreachable = 3 // RFC 792

// input is: ct state established,related accept; tcp dport 15001 accept; and nothing else.
func input(c *nftables.Conn, table *nftables.Table) {
	drop := nftables.ChainPolicyDrop
	chain := c.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	known := make([]byte, 4)
	binary.NativeEndian.PutUint32(known, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat([]expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: known, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}, accept)})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(protocol(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, CapturePort)},
	}, accept)})
}

func protocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
	}
}

// outside matches destinations that are not in the subnet of actor and gateway.
func outside() []expr.Any {
	network := subnet.Masked().Addr().As4()
	mask := make([]byte, 4)
	binary.BigEndian.PutUint32(mask, ^uint32(0)<<(32-subnet.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: network[:]},
	}
}

func concat(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}
