use super::*;

const S: u64 = 1_000_000_000;

/// Every packet of `stream`, cut into pieces of `piece` bytes.
fn split(stream: &[u8], piece: usize) -> Vec<(u8, Vec<u8>)> {
    let mut splitter = Splitter::new(100);
    let mut packets = Vec::new();
    for mut input in stream.chunks(piece) {
        while let Some(packet) = splitter.next(&mut input).unwrap() {
            packets.push((packet.kind.0, packet.payload.to_vec()));
        }
        assert!(input.is_empty());
    }
    packets
}

#[test]
fn packets_are_found_however_the_stream_is_cut() {
    let stream = b"\0\x01H\0\x06Shello\0\0\0\x02Ux\0\x01Z";
    let whole = [(b'H', vec![]), (b'S', b"hello".to_vec()), (b'U', b"x".to_vec()), (b'Z', vec![])];
    for piece in 1..=stream.len() {
        assert_eq!(split(stream, piece), whole, "pieces of {piece}");
    }
}

#[test]
fn a_packet_above_the_limit_ends_the_stream() {
    for piece in [1, 3] {
        let mut splitter = Splitter::new(4);
        let mut outcome = Ok(None);
        for mut input in b"\0\x05Shell".chunks(piece) {
            outcome = splitter.next(&mut input).map(|packet| packet.map(|p| p.kind));
            if outcome.is_err() {
                break;
            }
        }
        assert_eq!(outcome, Err(TooLong { got: 5, limit: 4 }));
    }
}

#[test]
fn text_for_people_above_the_limit_is_passed_over_however_the_stream_is_cut() {
    let mut stream = b"\0\x06Shello\0\xc9+".to_vec();
    stream.extend([0xff; 200]);
    stream.extend(b"\0\x02Ux\0\x66+");
    stream.extend([0; 101]);
    stream.extend(b"\0\x01Z");
    for piece in 1..=stream.len() {
        let found = split(&stream, piece);
        assert_eq!(found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), b"SUZ", "{piece}");
    }
}

fn client(config: ClientConfig, now: u64) -> (Client, Vec<u8>) {
    let mut out = Vec::new();
    let client = Client::new(config, now, &mut out);
    (client, out)
}

fn config() -> ClientConfig {
    ClientConfig {
        user: Text::new("user").unwrap(),
        password: Text::new("secret").unwrap(),
        next: 7,
        ..ClientConfig::default()
    }
}

#[test]
fn the_login_has_its_golden_bytes() {
    let (_, out) = client(config(), 0);
    let blanks = |count| vec![b' '; count];
    let login = [&b"\0\x2fLuser  secret    "[..], &blanks(10), &blanks(19), b"7"].concat();
    assert_eq!(out, login);
    let (_, out) = client(ClientConfig { announce_timeout_ms: Some(5000), ..config() }, 0);
    assert_eq!(&out[..3], b"\0\x34L");
    assert_eq!(&out[49..], b" 5000");
}

fn accepted<'a>() -> Packet<'a> {
    Packet { kind: PacketType::LOGIN_ACCEPTED, payload: b"         1                   7" }
}

#[test]
fn a_client_counts_what_is_sequenced_and_nothing_else() {
    let (mut client, _) = client(config(), 0);
    let session = Text(*b"         1");
    assert_eq!(client.receive(accepted(), S), ClientEvent::LoggedIn { session, next: 7 });
    let message = |kind| Packet { kind, payload: b"m" };
    let number = |event| match event {
        ClientEvent::Sequenced { number, .. } => number,
        other => panic!("{other:?}"),
    };
    assert_eq!(number(client.receive(message(PacketType::SEQUENCED), S)), 7);
    assert_eq!(client.receive(message(PacketType::UNSEQUENCED), S), ClientEvent::Unsequenced(b"m"));
    assert_eq!(client.receive(message(PacketType::DEBUG), S), ClientEvent::Alive);
    assert_eq!(number(client.receive(message(PacketType::SEQUENCED), S)), 8);
    assert_eq!(client.resume(), (session, 9));
}

#[test]
fn numbers_padded_on_the_right_are_read() {
    let (mut client, _) = client(config(), 0);
    let payload = b"1         7                   ";
    let packet = Packet { kind: PacketType::LOGIN_ACCEPTED, payload };
    assert!(matches!(client.receive(packet, 0), ClientEvent::LoggedIn { next: 7, .. }));
}

#[test]
fn a_server_that_starts_elsewhere_than_it_was_asked_to_is_refused() {
    let session = Text::new("1").unwrap();
    let answered = |payload| {
        let (mut client, _) = client(ClientConfig { session, ..config() }, 0);
        let packet = Packet { kind: PacketType::LOGIN_ACCEPTED, payload };
        match client.receive(packet, 0) {
            ClientEvent::Ended(Ended::Protocol(why)) => why.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let said = "message 7 was asked for, and the server starts at";
    assert_eq!(answered(b"         1                   8"), format!("{said} 8"));
    assert_eq!(answered(b"         1                   6"), format!("{said} 6"));
    let said = "session 1 was asked for, and the server has 2";
    assert_eq!(answered(b"         2                   7"), said);
}

/// The last number that there is: what follows it has none.
#[test]
fn a_server_whose_numbers_end_does_no_harm() {
    let (mut client, _) = client(ClientConfig { next: 0, ..config() }, 0);
    let payload = b"         118446744073709551615";
    let next = u64::MAX;
    let packet = Packet { kind: PacketType::LOGIN_ACCEPTED, payload };
    assert!(matches!(client.receive(packet, 0), ClientEvent::LoggedIn { next: u64::MAX, .. }));
    for _ in 0..2 {
        let message = Packet { kind: PacketType::SEQUENCED, payload: b"m" };
        let event = client.receive(message, 0);
        assert_eq!(event, ClientEvent::Sequenced { number: next, payload: b"m" });
    }
}

#[test]
fn a_client_sends_heartbeats_and_gives_up_a_silent_server() {
    let (mut client, mut out) = client(config(), 0);
    out.clear();
    assert_eq!(client.poll(2 * S, &mut out), None);
    assert!(out.is_empty(), "not before the login was accepted");
    client.receive(accepted(), 2 * S);
    assert_eq!(client.poll_at(), S);
    assert_eq!(client.poll(2 * S, &mut out), None);
    assert_eq!(out, b"\0\x01R");
    assert!(client.send(b"order", 2 * S + S / 2, &mut out));
    assert_eq!(client.poll(3 * S, &mut out), None);
    assert_eq!(&out[3..], b"\0\x06Uorder");
    assert_eq!(client.poll(17 * S, &mut out), Some(Ended::Silent));
    assert!(!client.send(b"order", 17 * S, &mut out));
}

#[test]
fn what_a_server_may_not_do_ends_the_session_with_its_name() {
    let packet = |kind: u8, payload: &'static [u8]| Packet { kind: PacketType(kind), payload };
    let fresh = |packet| client(config(), 0).0.receive(packet, 0);
    assert_eq!(
        fresh(packet(b'J', b"A")),
        ClientEvent::Ended(Ended::Rejected(Reject::NotAuthorised))
    );
    assert_eq!(fresh(packet(b'Z', b"")), ClientEvent::Ended(Ended::EndOfSession));
    for (kind, payload) in [(b'S', &b"x"[..]), (b'U', b"x"), (b'L', b""), (b'R', b"")] {
        let why = ProtocolError::Unexpected(PacketType(kind));
        assert_eq!(fresh(packet(kind, payload)), ClientEvent::Ended(why.into()));
    }
    for (kind, payload) in [(b'A', &b"short"[..]), (b'J', b""), (b'A', &[b' '; 30])] {
        let why = ProtocolError::Malformed(PacketType(kind));
        assert_eq!(fresh(packet(kind, payload)), ClientEvent::Ended(why.into()));
    }
    assert_eq!(
        Ended::from(ProtocolError::Unexpected(PacketType(b'L'))).to_string(),
        "the server broke the protocol: a packet 'L' now"
    );
}

fn login(bytes: &[u8]) -> Packet<'_> {
    Packet::from_body(&bytes[2..]).unwrap()
}

#[test]
fn both_ends_agree() {
    let (mut client, out) = client(ClientConfig { next: 5, ..config() }, 0);
    let config = ServerConfig { session: Text::new("12").unwrap(), ..ServerConfig::default() };
    let mut server = Server::new(config, 0);
    let ServerEvent::Login(asked) = server.receive(login(&out), 0) else { panic!() };
    assert_eq!((asked.user.trimmed(), asked.next.to_number()), (&b"user"[..], Some(5)));
    let mut out = Vec::new();
    assert_eq!(server.send(b"too early", 0, &mut out), None);
    server.accept(5, 0, &mut out);
    assert_eq!(out, b"\0\x1fA        12                   5");
    assert!(matches!(client.receive(login(&out), 0), ClientEvent::LoggedIn { next: 5, .. }));
    out.clear();
    assert_eq!(server.send(b"m", 0, &mut out), Some(5));
    assert_eq!(client.receive(login(&out), 0), ClientEvent::Sequenced { number: 5, payload: b"m" });
    out.clear();
    assert!(server.poll(S, &mut out));
    assert_eq!(out, b"\0\x01H");
    assert!(!server.poll(15 * S, &mut out), "silent for 15 s");
}

#[test]
fn a_server_hears_how_long_a_client_may_be_silent_and_waits_for_a_login() {
    let (_, out) = client(ClientConfig { announce_timeout_ms: Some(2000), ..config() }, 0);
    let mut server = Server::new(ServerConfig::default(), 0);
    assert!(server.poll(29 * S, &mut Vec::new()));
    assert!(!server.poll(30 * S, &mut Vec::new()));
    assert!(matches!(server.receive(login(&out), 0), ServerEvent::Login(_)));
    server.accept(1, 0, &mut Vec::new());
    assert!(server.poll(2 * S - 1, &mut Vec::new()));
    assert!(!server.poll(2 * S, &mut Vec::new()));
    let again = ServerEvent::Broken(ProtocolError::Unexpected(PacketType::LOGIN_REQUEST));
    assert_eq!(server.receive(login(&out), 0), again);
}

proptest::proptest! {
    #[test]
    fn a_stream_of_any_bytes_is_split_the_same_however_it_is_cut(
        bytes: Vec<u8>, piece in 1_usize..9,
    ) {
        let mut whole = Splitter::new(40);
        let mut pieces = Splitter::new(40);
        let mut expected = Vec::new();
        let mut input = &bytes[..];
        let end = loop {
            match whole.next(&mut input) {
                Ok(Some(packet)) => expected.push((packet.kind, packet.payload.to_vec())),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let mut found = Vec::new();
        let mut found_end = None;
        'stream: for mut input in bytes.chunks(piece) {
            loop {
                match pieces.next(&mut input) {
                    Ok(Some(packet)) => found.push((packet.kind, packet.payload.to_vec())),
                    Ok(None) => break,
                    Err(error) => {
                        found_end = Some(error);
                        break 'stream;
                    }
                }
            }
        }
        assert_eq!((found, found_end), (expected, end));
    }

    #[test]
    fn no_packet_makes_either_end_panic(kinds: Vec<(u8, Vec<u8>)>) {
        let (mut client, _) = client(config(), 0);
        let mut server = Server::new(ServerConfig::default(), 0);
        for (kind, payload) in &kinds {
            let packet = Packet { kind: PacketType(*kind), payload };
            client.receive(packet, 0);
            server.receive(packet, 0);
        }
    }
}
