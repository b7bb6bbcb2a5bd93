//! What `target` answers to a program, without and with a peer on the wire.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use clap::Parser;
use ferrocx_app_common::wait::Wait;
use ferrocx_perftest::{cli::Args, config::Config, end::Models, target};
use ferrocx_verbs_lite::{
    Access, InitAttr, Psn, QpConfig, Qpn, RemoteAddr, Rkey, RtrAttr, RtsAttr, SendOp, SendWr,
};
use serde_json::{Value, json};

struct Program(BufReader<UnixStream>);

impl Program {
    fn ask(&mut self, command: &Value) -> Value {
        let stream = self.0.get_mut();
        stream.write_all(format!("{command}\n").as_bytes()).expect("target listens");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("target answers");
        serde_json::from_str(&line).expect("JSON")
    }

    fn ok(&mut self, command: &Value) -> Value {
        let mut reply = self.ask(command);
        assert!(reply.get("error").is_none(), "{command}: {reply}");
        reply["ok"].take()
    }
}

#[test]
fn keys_are_bound_used_and_ended_as_a_program_says() {
    let args = Args::parse_from(["perftest", "pingpong", "rc", "--ip", "10.0.0.1/24"]);
    let config = Config::new(&args).expect("a good line");
    let (models, [here, there]) = Models::start(&config.net, Wait::Yield).expect("models");
    let mut net = config.net.clone();
    net.peer_mac = Some(here.device.device().mac());
    let (near, far) = UnixStream::pair().expect("a stream");
    let commands = std::thread::scope(|scope| {
        let serving = scope.spawn(|| target::serve(&there, &net, Wait::Yield, far));
        let mut program = Program(BufReader::new(near));
        program.ok(&json!({ "fill": { "seq": 7 } }));
        assert_eq!(program.ok(&json!({ "compare": { "seq": 7 } })), json!({ "same": true }));
        let differs = program.ok(&json!({ "compare": { "seq": 8 } }));
        assert_eq!(differs["same"], false);
        let bind = |len: usize, other: bool| {
            json!({ "bind": { "offset": 4096 + 8, "len": len, "rights": ["write"],
                "remote_invalidate": false, "other_domain": other } })
        };
        let refused = program.ask(&bind(1 << 30, false));
        assert!(refused["error"].is_string(), "{refused}");
        let key = program.ok(&bind(4096, false));
        assert_eq!(key["addr"], 8);
        let (_, mr) = here.memory(4096, Access::empty()).expect("memory");
        let mut cq = here.device.create_cq(1024).expect("a queue");
        let mut qp = here.pd.create_qp(&cq, &QpConfig::default()).expect("a queue pair");
        qp.init(&InitAttr::default()).expect("INIT");
        let connect = json!({ "connect": { "qpn": qp.qpn().0, "psn": 5, "ip": here.gid.ip() } });
        let peer = program.ok(&connect);
        let number = |value: &Value| value.as_u64().expect("a number") as u32;
        let path = here.path(there.gid, Some(there.device.device().mac())).expect("a path");
        let (qpn, psn) = (Qpn(number(&peer["qpn"])), Psn(number(&peer["psn"])));
        qp.connect(&RtrAttr::new(path, qpn, psn, config.net.mtu)).expect("RTR");
        qp.activate(&RtsAttr::new(Psn(5))).expect("RTS");
        let remote = RemoteAddr { addr: 8, rkey: Rkey(number(&key["rkey"])) };
        let mut write = |expected: bool| {
            let wr = SendWr::signaled(0, SendOp::Write(remote));
            qp.post_send(&wr, Some(mr.buf(0..100).expect("a piece"))).expect("room");
            let completion = loop {
                if let Some(completion) = cq.poll() {
                    break completion;
                }
                std::thread::yield_now();
            };
            qp.complete(completion, |wc| assert_eq!(wc.result.is_ok(), expected)).expect("ours");
        };
        write(true);
        let range = program.ok(&json!({ "compare": { "seq": 7 } }));
        let start = range["start"].as_u64().expect("a range");
        assert!((4104..4204).contains(&start), "{range}");
        program.ok(&json!({ "fill": { "seq": 7 } }));
        let range = json!({ "offset": 100, "len": 50, "rights": ["write"] });
        let window = program.ok(&json!({ "bind_window": range }));
        assert_ne!(window["rkey"], key["rkey"]);
        program.ok(&json!({ "end": { "rkey": window["rkey"] } }));
        let pages = |pages: &[usize]| json!({ "map_fmr": { "pages": pages } });
        let fmr = program.ok(&pages(&[8192, 4096]));
        assert_eq!(fmr["addr"], 0);
        program.ok(&json!({ "end": { "rkey": fmr["rkey"] } }));
        let refused = program.ask(&pages(&[100]));
        assert!(refused["error"].as_str().is_some_and(|error| error.contains("pages")));
        program.ok(&json!({ "end": { "rkey": key["rkey"] } }));
        let window = program.ok(&json!({ "bind_window": range }));
        write(false);
        // The connection has failed: the window is ended without it.
        program.ok(&json!({ "end": { "rkey": window["rkey"] } }));
        assert_eq!(program.ok(&json!({ "compare": { "seq": 7 } })), json!({ "same": true }));
        let again = program.ask(&json!({ "end": { "rkey": key["rkey"] } }));
        assert!(again["error"].as_str().is_some_and(|error| error.contains("is not bound")));
        let other = program.ok(&bind(8, true));
        program.ok(&json!({ "end": { "rkey": other["rkey"] } }));
        drop(program);
        serving.join().expect("no panic").expect("no error")
    });
    assert_eq!(commands, 20);
    here.close().expect("closed");
    there.close().expect("closed");
    // The WRITE by the key that had ended.
    let refused = models.stop().expect_err("one request was refused").to_string();
    assert!(refused.starts_with("the model refused 1 time(s)"), "{refused}");
}
