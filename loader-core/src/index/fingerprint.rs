//! The fingerprint of a table: one definition, over the ordered content, whatever the storage.

use xxhash_rust::xxh3::Xxh3;

/// Hashes names, each with its length before it so that their limits count.
#[derive(Default)]
pub(crate) struct NamesDigest {
    hash: Xxh3,
    buffer: Vec<u8>,
    count: u64,
}

impl NamesDigest {
    pub(crate) fn name(&mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.buffer.extend_from_slice(&(len as u64).to_le_bytes());
        for part in parts {
            self.buffer.extend_from_slice(part);
        }
        self.count += 1;
        // The hash is fast on long inputs and slow on many short ones.
        if self.buffer.len() >= 1 << 15 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.hash.update(&self.buffer);
        self.buffer.clear();
    }

    /// How many names and their hash; makes it ready for the next run.
    pub(crate) fn take(&mut self) -> (u64, u128) {
        self.flush();
        let out = (self.count, self.hash.digest128());
        self.hash.reset();
        self.count = 0;
        out
    }
}

/// The fingerprint of classes and entries, given in order.
///
/// Entries are taken in runs, as long as possible, of one directory and one class; a run counts by
/// the hash of its file names. So a scan hashes its directories in parallel.
#[derive(Default)]
pub(crate) struct Digest {
    hash: Xxh3,
    run: Option<(Vec<u8>, u32)>,
    names: NamesDigest,
}

impl Digest {
    /// The class names, before any entry.
    pub(crate) fn classes<'a>(&mut self, count: u32, names: impl Iterator<Item = &'a [u8]>) {
        self.hash.update(&u64::from(count).to_le_bytes());
        names.for_each(|name| self.text(name));
    }

    /// The next entry.
    pub(crate) fn entry(&mut self, dir: &[u8], class: u32, name: &[&[u8]]) {
        if self.run.as_ref().is_none_or(|(d, c)| d != dir || *c != class) {
            self.end_run();
            self.run = Some((dir.to_owned(), class));
        }
        self.names.name(name);
    }

    /// The next run of entries.
    pub(crate) fn run(&mut self, dir: &[u8], class: u32, (count, names): (u64, u128)) {
        self.text(dir);
        self.hash.update(&u64::from(class).to_le_bytes());
        self.hash.update(&count.to_le_bytes());
        self.hash.update(&names.to_le_bytes());
    }

    pub(crate) fn finish(mut self) -> u128 {
        self.end_run();
        self.hash.digest128()
    }

    fn end_run(&mut self) {
        if let Some((dir, class)) = self.run.take() {
            let names = self.names.take();
            self.run(&dir, class, names);
        }
    }

    fn text(&mut self, text: &[u8]) {
        self.hash.update(&(text.len() as u64).to_le_bytes());
        self.hash.update(text);
    }
}
