//! Listeners: ids that share a port, or have one to themselves.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::id::{Id, Life};
use super::kernel::rdma_ucm_listen;
use super::port::{Family, MAX_BACKLOG, Port, Source};
use super::{Service, places};
use crate::face::Errno;
use crate::node::lock;

impl Id {
    /// The port that it listens on, and for whom.
    fn listens_on(&self) -> Option<(&Arc<Mutex<Port>>, Family)> {
        match &self.life {
            Life::Listening { port, family } => Some((port, *family)),
            _ => None,
        }
    }
}

impl Service {
    pub(super) fn listen(&self, command: &rdma_ucm_listen) -> Result<(), Errno> {
        let source = self.with(command.id, |id| Ok(id.source))?;
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let source = source.unwrap_or(any);
        let number = self.take_port(source.port());
        let backlog = match command.backlog {
            0 => MAX_BACKLOG,
            backlog => backlog.min(MAX_BACKLOG),
        };
        let mut table = lock(&self.table);
        let id = table.ids.get(&command.id).ok_or(Errno(libc::ENOENT))?;
        let Life::New = id.life else { return Err(Errno::INVALID) };
        let family = Family::of(source.ip(), id.is_one_family);
        // At an address of a device it is there alone.
        let rails = if id.has_device { id.rail..id.rail + 1 } else { 0..self.rails.len() };
        let mut shared = None;
        for (port, others) in table.ids.values().filter_map(Id::listens_on) {
            let has_port = lock(port);
            let is_one = (has_port.number, has_port.space) == (number, id.space);
            if is_one && has_port.rails().any(|rail| rails.contains(&rail)) {
                if !family.is_apart_from(others) || !has_port.rails().eq(rails.clone()) {
                    return Err(Errno(libc::EADDRINUSE));
                }
                shared = Some(Arc::clone(port));
            }
        }
        let port = match shared {
            Some(port) => port,
            None => Arc::new(Mutex::new(self.open_port(number, id, rails, backlog as usize)?)),
        };
        let id = table.ids.get_mut(&command.id).ok_or(Errno(libc::ENOENT))?;
        id.life = Life::Listening { port, family };
        id.source = Some(SocketAddr::new(source.ip(), number));
        tracing::info!(port = number, "listening");
        Ok(())
    }

    fn open_port(
        &self,
        number: u16,
        id: &Id,
        rails: Range<usize>,
        backlog: usize,
    ) -> Result<Port, Errno> {
        let mut sources = Vec::new();
        let mut places = Vec::new();
        for index in rails {
            let rail = &self.rails[index];
            let source = match id.is_datagram {
                true => Source::Datagrams(rail.manager.listen_datagrams(number)?),
                false => Source::Connections(rail.manager.listen_with(number, backlog)?),
            };
            sources.push((index, source));
            if rail.node.is_model() {
                places.extend(places::announce(id.space, number, rail.local()));
            }
        }
        Ok(Port::new(number, id.space, sources, places))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::face::rdma_cm::kernel::{Address, cmd, rdma_ucm_bind_ip, rdma_ucm_set_option};
    use zerocopy::IntoBytes as _;

    /// A new id that listens at an address of any kind, by the commands that librdmacm writes.
    fn listener(
        service: &Service,
        number: u32,
        ip: IpAddr,
        one_family: Option<u32>,
    ) -> Result<(), Errno> {
        const TCP: u16 = 0x106;
        let id = Id::new(0, 0, TCP, false);
        lock(&service.table).ids.insert(number, id);
        let command = |number: u32, command: &[u8]| {
            let header = super::super::kernel::rdma_ucm_cmd_hdr {
                cmd: number,
                input: command.len() as u16,
                output: 0,
            };
            service.command(0, &[header.as_bytes(), command].concat())
        };
        if let Some(value) = &one_family {
            let option = rdma_ucm_set_option {
                optval: (&raw const *value).expose_provenance() as u64,
                id: number,
                level: 0,
                optname: 2,
                optlen: 4,
            };
            command(cmd::SET_OPTION, option.as_bytes())?;
        }
        let addr = Address::of(Some(SocketAddr::new(ip, 17_219)));
        let bind = rdma_ucm_bind_ip { response: 0, addr, id: number };
        command(cmd::BIND_IP, bind.as_bytes())?;
        command(cmd::LISTEN, rdma_ucm_listen { id: number, backlog: 0 }.as_bytes())
    }

    #[test]
    fn a_port_has_a_listener_for_each_family() {
        let service = Service::open().unwrap();
        let (v4, v6) = (IpAddr::from([0; 4]), IpAddr::from([0_u16; 8]));
        let in_use = |result: Result<(), Errno>| result.unwrap_err().0 == libc::EADDRINUSE;
        listener(&service, 1, v4, None).unwrap();
        assert!(in_use(listener(&service, 2, v4, None)), "the same once more");
        assert!(in_use(listener(&service, 2, v6, None)), "it would be for both");
        assert!(in_use(listener(&service, 2, v6, Some(0))), "it says so");
        listener(&service, 3, v6, Some(1)).unwrap();
        assert!(in_use(listener(&service, 4, v6, Some(1))), "there is one");
        // The port stays as long as one of the two does.
        lock(&service.table).ids.remove(&1);
        assert!(in_use(listener(&service, 5, v6, Some(1))));
        listener(&service, 6, v4, Some(1)).unwrap();
        lock(&service.table).ids.clear();
        listener(&service, 7, v6, None).unwrap();
        assert!(in_use(listener(&service, 8, v4, None)), "one for both is there");
    }
}
