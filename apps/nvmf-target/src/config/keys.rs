//! Keys of hosts, as the file and requests have them: [`KeyFile`].

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::auth::key::PREFIX;
use crate::auth::{Group, Hash, HostKey, Secret};
use crate::proto::connect::is_nqn;

/// Bytes of a file with a key at most.
const MAX_BYTES: u64 = 4096;

/// A key's text, which is never shown.
#[derive(Clone, Deserialize)]
#[serde(from = "String")]
pub struct SecretText(Zeroizing<String>);

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(not shown)")
    }
}

/// A host that has to authenticate itself, as the file has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// Name of the host.
    pub host: String,
    /// Its key, `DHHC-1:...`: then others must not be able to read the file that has it.
    pub secret: Option<SecretText>,
    /// The file that has its key, which others must not be able to read.
    pub secret_file: Option<PathBuf>,
    /// The target's own key, for hosts that want to be shown one.
    pub controller_secret: Option<SecretText>,
    /// The file that has the target's own key.
    pub controller_secret_file: Option<PathBuf>,
    /// Hashes that will do, the best first.
    #[serde(default = "hashes")]
    pub hashes: Vec<Hash>,
    /// Groups that will do, the best first.
    #[serde(default = "groups")]
    pub groups: Vec<Group>,
}

fn hashes() -> Vec<Hash> {
    Hash::ALL.to_vec()
}

fn groups() -> Vec<Group> {
    Group::FFDHE.to_vec()
}

impl KeyFile {
    /// Whether the text of a key is in it.
    #[must_use]
    pub fn has_text(&self) -> bool {
        self.secret.is_some() || self.controller_secret.is_some()
    }

    /// Checks it, and reads the files that it names.
    ///
    /// # Errors
    ///
    /// One sentence that names the value, its limit and the way out. It never shows a key.
    pub fn check(self) -> Result<(String, HostKey)> {
        let host = self.host.clone();
        ensure!(
            is_nqn(&host),
            "host `{host}` is no name; give one like nqn.2014-08.org.nvmexpress:uuid:..."
        );
        let place = || format!("key of host `{host}`");
        let key = self.key().with_context(place)?;
        Ok((host, key))
    }

    fn key(self) -> Result<HostKey> {
        ensure!(!self.hashes.is_empty(), "hashes is empty; leave it out, or name one");
        ensure!(!self.groups.is_empty(), "groups is empty; leave it out, or name one");
        let secret = secret("secret", self.secret, self.secret_file.as_deref())?;
        let Some(secret) = secret else {
            bail!("there is no secret; give secret_file = \"...\", a file of mode 0600");
        };
        let file = self.controller_secret_file.as_deref();
        let controller = self::secret("controller_secret", self.controller_secret, file)?;
        let is_same = controller.as_ref() == Some(&secret);
        ensure!(!is_same, "the host's key and the target's own are the same; make another one");
        Ok(HostKey { secret, controller, hashes: self.hashes, groups: self.groups })
    }
}

fn secret(what: &str, text: Option<SecretText>, file: Option<&Path>) -> Result<Option<Secret>> {
    let text = match (text, file) {
        (Some(_), Some(_)) => bail!("{what} and {what}_file are both there; leave one of them out"),
        (None, None) => return Ok(None),
        (Some(SecretText(text)), None) => text,
        // It is not shown: the key itself, where its file's name belongs.
        (None, Some(path)) if path.to_string_lossy().contains(PREFIX) => {
            bail!("{what}_file is a key itself; give the name of a file of mode 0600 that holds it")
        }
        (None, Some(path)) => {
            let place = || format!("{what}_file {}", path.display());
            read(path).with_context(place)?
        }
    };
    Ok(Some(Secret::parse(&text).with_context(|| what.to_owned())?))
}

fn read(path: &Path) -> Result<Zeroizing<String>> {
    let about = fs::metadata(path)?;
    let len = about.len();
    ensure!(
        about.is_file() && len <= MAX_BYTES,
        "it has {len} bytes; a key's has {MAX_BYTES} at most"
    );
    check_mode(path, &about)?;
    Ok(Zeroizing::new(fs::read_to_string(path)?))
}

/// Refuses a file that others can read.
fn check_mode(path: &Path, about: &fs::Metadata) -> Result<()> {
    let mode = about.permissions().mode() & 0o777;
    let path = path.display();
    ensure!(mode & 0o077 == 0, "others can get at it, its mode is {mode:04o}; chmod 600 {path}");
    Ok(())
}

/// Refuses a file with the text of a key in it that others can read.
///
/// # Errors
///
/// A sentence about it.
pub fn check_readers(path: &Path) -> Result<()> {
    check_mode(path, &fs::metadata(path)?)
        .context("a key is written in it: put that into a file of its own, or close this one")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::auth::key::tests::{KEY_32, KEY_48};

    fn key(text: &str) -> Result<(String, HostKey)> {
        toml::from_str::<KeyFile>(&format!("host = \"nqn.2014-08.a:h\"\n{text}"))?.check()
    }

    #[test]
    fn keys_are_read_from_files_that_only_we_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, format!("{KEY_48}\n")).unwrap();
        let line = format!("secret_file = \"{}\"", path.display());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = format!("{:#}", key(&line).unwrap_err());
        assert!(error.contains("mode is 0640; chmod 600"), "{error}");
        assert!(check_readers(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let (host, read) = key(&line).unwrap();
        assert_eq!(read.secret, Secret::parse(KEY_48).unwrap());
        assert_eq!((host.as_str(), read.controller), ("nqn.2014-08.a:h", None));
        assert_eq!((read.hashes.len(), read.groups.contains(&Group::Null)), (3, false));
        check_readers(&path).unwrap();
        fs::write(&path, vec![b'x'; 5000]).unwrap();
        assert!(format!("{:#}", key(&line).unwrap_err()).contains("5000 bytes"));
    }

    #[test]
    fn each_wrong_value_is_named_and_no_key_is_shown() {
        let with = |rest: &str| format!("secret = \"{KEY_32}\"\n{rest}");
        for (text, says) in [
            ("".to_owned(), "there is no secret"),
            (with("secret_file = \"x\""), "secret and secret_file are both there"),
            (with(&format!("controller_secret = \"{KEY_32}\"")), "are the same"),
            (with("controller_secret = \"x\""), "begins with DHHC-1:"),
            (with("hashes = []"), "hashes is empty"),
            (with("groups = []"), "groups is empty"),
            (with("groups = [\"ffdhe1024\"]"), "ffdhe1024"),
            (format!("secret = \"{}\"", KEY_32.replace("AAEC", "AAED")), "check sum"),
            ("secret_file = \"/no/such\"".to_owned(), "secret_file /no/such"),
            (format!("secret_file = \"{KEY_32}\""), "secret_file is a key itself"),
            (with(&format!("controller_secret_file = \"{KEY_32}\"")), "is a key itself"),
        ] {
            let error = format!("{:#}", key(&text).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
            assert!(!error.contains("AwQFBgc"), "{error}");
        }
        let shown =
            format!("{:?}", toml::from_str::<KeyFile>(&format!("host = \"x\"\n{}", with(""))));
        assert!(!shown.contains("AwQFBgc"), "{shown}");
        assert!(KEY_32.contains("AwQFBgc"));
        let (_, both) = key(&with(&format!("controller_secret = \"{KEY_48}\""))).unwrap();
        assert!(both.controller.is_some());
    }
}
