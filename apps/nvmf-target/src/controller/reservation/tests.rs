use super::*;

const A: HostId = HostId::nameless([1; 16]);
const B: HostId = HostId::nameless([2; 16]);
const C: HostId = HostId::nameless([3; 16]);
const STATUS: Status = CONFLICT.dnr();

fn registered(hosts: &[HostId]) -> Reservation {
    let mut it = Reservation::default();
    for host in hosts {
        assert_eq!(it.register(host, 0, (0, u64::from(host.id[0]))), Ok(Vec::new()));
    }
    it
}

fn acquire(it: &mut Reservation, host: &HostId, kind: Kind) -> Result<Told, Status> {
    it.acquire(host, (kind as u32) << 8, (u64::from(host.id[0]), 0))
}

/// The table of the specification, row by row: holder, registrant, other; write and read.
#[test]
fn rights_are_those_of_the_table() {
    use Kind::*;
    for (kind, expected) in [
        (WriteExclusive, [true, true, false, true, false, true]),
        (ExclusiveAccess, [true, true, false, false, false, false]),
        (WriteExclusiveRegistrants, [true, true, true, true, false, true]),
        (ExclusiveAccessRegistrants, [true, true, true, true, false, false]),
        (WriteExclusiveAll, [true, true, true, true, false, true]),
        (ExclusiveAccessAll, [true, true, true, true, false, false]),
    ] {
        let mut it = registered(&[A, B]);
        acquire(&mut it, &A, kind).unwrap();
        let rights = [A, B, C].map(|host| {
            let may = |opcode| it.check(&host, opcode).is_ok();
            assert_eq!(may(io::WRITE), may(io::FLUSH));
            assert_eq!(may(io::WRITE), may(io::DSM));
            assert_eq!(may(io::READ), may(io::VERIFY));
            [may(io::WRITE), may(io::READ)]
        });
        assert_eq!(rights.concat(), expected, "{kind:?}");
        assert_eq!(it.holds(&B), kind.is_of_all());
    }
    assert_eq!(Reservation::default().check(&C, io::WRITE), Ok(()));
}

#[test]
fn keys_are_asked_for() {
    let mut it = registered(&[A]);
    assert_eq!(it.register(&A, 0, (0, 1)), Ok(Vec::new()), "the same once more");
    assert_eq!(it.register(&A, 0, (0, 9)), Err(STATUS));
    assert_eq!(it.register(&A, 2, (7, 9)), Err(STATUS));
    assert_eq!(it.register(&B, 2, (0, 9)), Err(STATUS), "not registered");
    assert_eq!(it.register(&A, 2, (1, 9)), Ok(Vec::new()));
    assert_eq!(it.register(&A, 2 | 1 << 3, (0, 1)), Ok(Vec::new()), "whatever the key");
    assert_eq!(it.register(&A, 3, (1, 9)), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(it.register(&A, 1 << 30, (0, 1)), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(it.acquire(&A, 1 << 8, (2, 0)), Err(STATUS));
    assert_eq!(it.acquire(&A, 0, (1, 0)), Err(Status::INVALID_FIELD.dnr()), "no kind");
    assert_eq!(it.acquire(&A, 7 << 8, (1, 0)), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(it.release(&B, 1 << 8, 0), Err(STATUS));
    assert_eq!(it.register(&A, 1, (2, 0)), Err(STATUS));
    assert_eq!(it.register(&A, 1, (1, 0)), Ok(Vec::new()));
    assert!(it.is_empty());
    assert_eq!(it.generation(), 4);
}

#[test]
fn a_reservation_is_acquired_once_and_released_by_its_holder() {
    let mut it = registered(&[A, B]);
    let kind = Kind::WriteExclusiveRegistrants;
    acquire(&mut it, &A, kind).unwrap();
    acquire(&mut it, &A, kind).unwrap();
    assert_eq!(acquire(&mut it, &A, Kind::WriteExclusive), Err(STATUS));
    assert_eq!(acquire(&mut it, &B, kind), Err(STATUS));
    assert_eq!(it.release(&B, (kind as u32) << 8, 2), Ok(Vec::new()), "it holds nothing");
    assert!(it.holds(&A));
    assert_eq!(it.release(&A, 1 << 8, 1), Err(Status::INVALID_FIELD.dnr()), "another kind");
    let told = it.release(&A, (kind as u32) << 8, 1).unwrap();
    assert_eq!(told, [(B, Notice::Released)]);
    assert_eq!(it.kind(), None);
    // Clear takes the registrants away, too.
    acquire(&mut it, &B, Kind::ExclusiveAccess).unwrap();
    assert_eq!(it.release(&A, 1, 1).unwrap(), [(B, Notice::Preempted)]);
    assert!(it.is_empty() && it.kind().is_none());
}

#[test]
fn whoever_unregisters_lets_go_what_it_holds_alone() {
    let mut it = registered(&[A, B]);
    acquire(&mut it, &A, Kind::ExclusiveAccessRegistrants).unwrap();
    assert_eq!(it.register(&A, 1, (1, 0)).unwrap(), [(B, Notice::Released)]);
    assert_eq!(it.kind(), None);
    let mut it = registered(&[A, B]);
    acquire(&mut it, &A, Kind::WriteExclusiveAll).unwrap();
    it.register(&A, 1, (1, 0)).unwrap();
    assert!(it.holds(&B) && it.check(&A, io::WRITE).is_err());
    it.register(&B, 1, (2, 0)).unwrap();
    assert_eq!(it.kind(), None, "nobody is left");
}

#[test]
fn a_reservation_is_preempted_by_its_key() {
    let exclusive = (Kind::ExclusiveAccess as u32) << 8;
    let mut it = registered(&[A, B, C]);
    acquire(&mut it, &A, Kind::WriteExclusive).unwrap();
    assert_eq!(it.acquire(&B, exclusive | 1, (2, 9)), Err(STATUS), "nobody's key");
    // A registrant that holds nothing only loses its registration.
    let told = it.acquire(&B, exclusive | 1, (2, 3)).unwrap();
    assert_eq!(told, [(C, Notice::RegistrationPreempted)]);
    assert!(it.holds(&A));
    let told = it.acquire(&B, exclusive | 2, (2, 1)).unwrap();
    assert_eq!(told, [(A, Notice::RegistrationPreempted)]);
    assert!(it.holds(&B) && it.kind() == Some(Kind::ExclusiveAccess));
    assert_eq!(it.registrants().len(), 1);
    // The holder changes the kind of its own.
    it.acquire(&B, (Kind::WriteExclusive as u32) << 8 | 1, (2, 2)).unwrap();
    assert_eq!(it.kind(), Some(Kind::WriteExclusive));
    // What all hold is preempted by the key 0.
    let mut it = registered(&[A, B]);
    acquire(&mut it, &A, Kind::WriteExclusiveAll).unwrap();
    it.acquire(&B, exclusive | 1, (2, 0)).unwrap();
    assert!(it.holds(&B) && it.registrants().len() == 1);
}

#[test]
fn whoever_is_preempted_by_a_key_holds_nothing_with_the_others() {
    for kind in [Kind::WriteExclusiveAll, Kind::ExclusiveAccessAll] {
        for action in [1, PREEMPT_AND_ABORT] {
            let mut it = registered(&[A, B, C]);
            it.register(&B, 2 | 3 << 30, (2, 2)).unwrap();
            acquire(&mut it, &A, kind).unwrap();
            let told = it.acquire(&B, (kind as u32) << 8 | action, (2, 1)).unwrap();
            assert_eq!(told, [(A, Notice::RegistrationPreempted)]);
            assert_eq!(it.check(&A, io::WRITE), Err(STATUS), "{kind:?}");
            let reads = kind == Kind::WriteExclusiveAll;
            assert_eq!(it.check(&A, io::READ).is_ok(), reads, "{kind:?}");
            assert!(!it.holds(&A) && it.holds(&B) && it.holds(&C) && it.kind() == Some(kind));
            // A target that starts again finds it so.
            assert_eq!(Reservation::from_text(&it.text([7; 16]), [7; 16]), Ok(it));
        }
    }
}

#[test]
fn the_report_has_the_bytes_of_the_table() {
    let mut it = registered(&[A, B]);
    acquire(&mut it, &B, Kind::ExclusiveAccess).unwrap();
    let page = it.report(|host| if *host == A { vec![] } else { vec![0x0102, 7] });
    assert_eq!(page.len(), 64 * 4);
    assert_eq!(page[..10], [2, 0, 0, 0, 2, 3, 0, 0, 0, 0]);
    assert_eq!(page[64..80], [0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[80..96], A.id);
    assert_eq!(page[128..144], [2, 1, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[192..194], [7, 0]);
}

#[test]
fn whoever_registers_says_whether_it_outlives_the_target() {
    let mut it = registered(&[A]);
    assert!(!it.persists());
    assert_eq!(it.register(&B, 3 << 30 | 2, (7, 9)), Err(STATUS), "refused: as it was");
    assert!(!it.persists());
    it.register(&A, 3 << 30, (0, 1)).unwrap();
    assert!(it.persists());
    it.register(&B, 0, (0, 2)).unwrap();
    assert!(it.persists(), "no change was asked for");
    assert_eq!(it.report(|_| vec![1])[9], 1);
    it.release(&B, 1, 2).unwrap();
    assert!(it.persists() && it.is_empty(), "that of a namespace whose registrants have gone");
    it.register(&A, 2 << 30, (0, 1)).unwrap();
    assert!(!it.persists());
}

/// Key 0 stands for all of them where all hold the reservation, and for nobody where one does.
#[test]
fn key_0_preempts_all_or_is_wrong() {
    let preempt = |it: &mut Reservation| it.acquire(&B, 1 << 8 | 1, (2, 0));
    for kind in [Kind::WriteExclusive, Kind::ExclusiveAccessRegistrants] {
        let mut it = registered(&[A, B]);
        acquire(&mut it, &A, kind).unwrap();
        assert_eq!(preempt(&mut it), Err(Status::INVALID_FIELD.dnr()), "{kind:?}");
        assert!(it.holds(&A));
    }
    let mut it = registered(&[A, B]);
    assert_eq!(preempt(&mut it), Err(STATUS), "nobody holds it");
    // A key that was registered is one.
    let mut it = registered(&[B]);
    it.register(&A, 0, (0, 0)).unwrap();
    it.acquire(&A, 1 << 8, (0, 0)).unwrap();
    preempt(&mut it).unwrap();
    assert!(it.holds(&B));
}
