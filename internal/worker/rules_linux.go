package worker

import (
	"encoding/binary"
	"fmt"
	"net/netip"

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
		leaveUntracked(c, table)
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

// leaveUntracked is, of what comes in: ip saddr 169.254.17.2 ip daddr 169.254.17.1 tcp dport != 15001 notrack; of what goes out:
// ip daddr 169.254.17.2 tcp sport != 15001 notrack. The kernel would remember each connection to the actor for two minutes after
// its end, and refuse others when it remembers as many as it can; and remembering costs time.
func leaveUntracked(c *nftables.Conn, table *nftables.Table) {
	in := c.AddChain(&nftables.Chain{
		Name: "arriving", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: concat(
		protocol(unix.IPPROTO_TCP), address(sourceOffset, actorAddress), address(destinationOffset, gatewayAddress),
		port(destinationPort, expr.CmpOpNeq), []expr.Any{&expr.Notrack{}},
	)})
	out := c.AddChain(&nftables.Chain{
		Name: "leaving", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: out, Exprs: concat(
		protocol(unix.IPPROTO_TCP), address(destinationOffset, actorAddress), port(sourcePort, expr.CmpOpNeq), []expr.Any{&expr.Notrack{}},
	)})
}

// input is: ct state untracked tcp flags & (syn | ack) != syn accept; ct state established,related accept; tcp dport 15001 accept;
// and nothing else.
func input(c *nftables.Conn, table *nftables.Table) {
	drop := nftables.ChainPolicyDrop
	chain := c.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(
		tracked(expr.CtStateBitUNTRACKED), protocol(unix.IPPROTO_TCP),
		[]expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flagsOffset, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flagSYN | flagACK}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{flagSYN}},
		}, accept)})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(tracked(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept)})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(protocol(unix.IPPROTO_TCP), port(destinationPort, expr.CmpOpEq), accept)})
}

// Where things are in the heads of IPv4 (RFC 791) and TCP (RFC 9293).
const (
	sourceOffset      = 12
	destinationOffset = 16
	sourcePort        = 0
	destinationPort   = 2
	flagsOffset       = 13
	flagSYN           = 0x02
	flagACK           = 0x10
)

// tracked matches packets whose connection is in one of the states.
func tracked(states uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, states), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// address matches one of the two addresses of a packet.
func address(offset uint32, a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}

// port compares one of the two ports of a packet with CapturePort.
func port(offset uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: op, Register: 1, Data: binary.BigEndian.AppendUint16(nil, CapturePort)},
	}
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
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destinationOffset, Len: 4},
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
