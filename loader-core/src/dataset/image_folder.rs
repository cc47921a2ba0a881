//! A folder of class folders of image files, with torchvision's rules, scanned once per host.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Fingerprint;
use crate::index::{
    self, Accept, Built, Content, Dir, Entry, PathTable, Reason, ScanOptions, ScanReport, Section,
    TableError, TableOrigin,
};
use crate::kept::TableCache;

/// The extensions of samples where none are given: torchvision's.
pub(crate) const EXTENSIONS: [&str; 9] =
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// Names shown in an error message.
const SHOWN: usize = 10;

/// What to do with class folders without a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyClasses {
    /// Opening fails and lists them.
    #[default]
    Refuse,
    /// They are classes like others: torchvision's `allow_empty`.
    Keep,
    /// They are no classes; the classes behind them move up.
    Drop,
}

/// The order in which class folders are numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassOrder {
    /// By the bytes of their names, as torchvision does: `1`, `10`, `2`.
    #[default]
    Bytes,
    /// Digits by the number that they write: `1`, `2`, `10`.
    Natural,
}

/// What to do where a folder or the target of a link can't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreadable {
    /// Opening fails and lists them.
    #[default]
    Refuse,
    /// They count as empty, the report counts them, and the next opening tries again.
    Skip,
}

/// Why an image folder could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The root is missing, is no folder, or can't be opened.
    #[error("{root:?} can't be opened as a folder of class folders: {source}")]
    NotAFolder {
        /// The root that was given.
        root: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No class folder in the root.
    #[error(
        "{root:?} has no class folders: each class needs a folder with its images right below the \
         root. Found there: {report}"
    )]
    NoClasses {
        /// The root that was given.
        root: PathBuf,
        /// What was found instead.
        report: Box<ScanReport>,
    },
    /// Class folders without a sample.
    #[error(
        "no samples in {} of the class folders of {root:?}: {}. Samples are {accepted}. Allow it \
         with empty_classes(EmptyClasses::Keep), or Drop. Left out: {report}",
        classes.len(), Listed(classes)
    )]
    EmptyClasses {
        /// The root that was given.
        root: PathBuf,
        /// The names of the classes.
        classes: Vec<OsString>,
        /// Which files are samples.
        accepted: String,
        /// What was left out.
        report: Box<ScanReport>,
    },
    /// Class folders that the given class list does not contain.
    #[error(
        "class folders of {root:?} that are not among the {known} given classes: {}",
        Listed(classes)
    )]
    UnknownClasses {
        /// The root that was given.
        root: PathBuf,
        /// The names of the folders.
        classes: Vec<OsString>,
        /// The number of classes given.
        known: usize,
    },
    /// Folders or links that can't be read.
    #[error(
        "{count} folders or links of {root:?} can't be read, such as {}. Repair them, or leave them \
         out with unreadable(Unreadable::Skip)",
        Listed(examples)
    )]
    Unreadable {
        /// The root that was given.
        root: PathBuf,
        /// How many.
        count: u64,
        /// Some of them, with what the system said.
        examples: Vec<OsString>,
    },
    /// Options that make no sense, or not together.
    #[error("{option}: {what}")]
    Option {
        /// The builder's method.
        option: &'static str,
        /// What is wrong, and what to do.
        what: &'static str,
    },
    /// The scan failed as a whole.
    #[error("scan of {root:?}: {source}")]
    Scan {
        /// The root that was given.
        root: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The table could not be opened or made.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// The first few names, escaped where they are not plain text.
struct Listed<'a>(&'a [OsString]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{name:?}", if i == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A folder with a folder of image files for each class: `root/dog/xxx.png`,
/// `root/cat/nested/yyy.jpg`.
///
/// Classes, samples, their order and their labels are those of torchvision's `ImageFolder(root)`:
/// classes are the folders right below the root by the bytes of their names; the samples of a class
/// are sorted by the path of their folder, then by name. What differs, on purpose, is that names
/// which begin with a dot are no data, and neither are broken links, pipes and devices;
/// [`report`](Self::report) counts all that was left out.
///
/// The first opening scans the tree, reading directories only; later ones attach the table that it
/// left behind, after a look at each directory's time of change, and read again just those that
/// changed. A change of what a link *to a file* points at changes no directory of the tree: use
/// [`rescan`](ImageFolderBuilder::rescan) after that. Clones share everything.
#[derive(Clone)]
pub struct ImageFolder(Arc<Inner>);

struct Inner {
    table: PathTable,
    report: ScanReport,
    origin: TableOrigin,
    numbers: OnceLock<HashMap<OsString, u32>>,
}

impl ImageFolder {
    /// Opens the folder with the default options.
    ///
    /// # Errors
    /// Where the root is no folder of class folders, a class has no samples, or a folder can't be
    /// read.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, FolderError> {
        Self::builder(root).open()
    }

    /// Options, then [`open`](ImageFolderBuilder::open).
    pub fn builder(root: impl AsRef<Path>) -> ImageFolderBuilder {
        ImageFolderBuilder {
            root: root.as_ref().to_owned(),
            extensions: EXTENSIONS.map(OsString::from).to_vec(),
            predicate: None,
            hidden: false,
            follow_links: true,
            empty: EmptyClasses::default(),
            order: ClassOrder::default(),
            unreadable: Unreadable::default(),
            classes: None,
            cache: TableCache::default(),
            rescan: false,
        }
    }

    /// The files of a table that came from elsewhere: a list, another process, a file by its name.
    ///
    /// # Errors
    /// Where the table's report is damaged.
    pub fn from_table(table: PathTable) -> Result<Self, TableError> {
        Self::new(table, TableOrigin::Attached)
    }

    pub(super) fn new(table: PathTable, origin: TableOrigin) -> Result<Self, TableError> {
        let report = table.report()?;
        Ok(Self(Arc::new(Inner { table, report, origin, numbers: OnceLock::new() })))
    }

    /// The number of samples.
    pub fn len(&self) -> u64 {
        self.0.table.len()
    }

    /// True where there is no sample.
    pub fn is_empty(&self) -> bool {
        self.0.table.is_empty()
    }

    /// The folder that was opened, as an absolute path.
    pub fn root(&self) -> &Path {
        self.0.table.root()
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> impl ExactSizeIterator<Item = &OsStr> {
        let table = &self.0.table;
        (0..table.class_count()).map(|class| table.class_name(class).unwrap_or_default())
    }

    /// The label of the class of that name.
    pub fn class_to_idx(&self, name: impl AsRef<OsStr>) -> Option<i64> {
        let numbers = self.0.numbers.get_or_init(|| {
            (0..).zip(self.classes()).map(|(number, name)| (name.to_owned(), number)).collect()
        });
        numbers.get(name.as_ref()).copied().map(i64::from)
    }

    /// The path and the label of a sample.
    ///
    /// # Errors
    /// Where there is no such sample, or the table is damaged there.
    pub fn sample(&self, index: u64) -> Result<Entry<'_>, TableError> {
        self.0.table.get(index)
    }

    /// All samples in their order.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = Result<Entry<'_>, TableError>> + '_ {
        self.0.table.iter()
    }

    /// The label of a sample.
    ///
    /// # Errors
    /// Those of [`sample`](Self::sample).
    pub fn label(&self, index: u64) -> Result<i64, TableError> {
        Ok(self.sample(index)?.label())
    }

    /// The number of samples of each class, by label.
    pub fn class_counts(&self) -> Vec<u64> {
        class_counts(&self.0.table)
    }

    /// What the scan found, what it left out, and why: the same whether it was done now or earlier.
    pub fn report(&self) -> &ScanReport {
        &self.0.report
    }

    /// The table of paths.
    pub fn table(&self) -> &PathTable {
        &self.0.table
    }

    /// Whether opening scanned, or found a table to attach.
    pub fn origin(&self) -> TableOrigin {
        self.0.origin
    }

    /// Identifies the classes and the samples' relative paths and labels, in their order.
    pub fn fingerprint(&self) -> Fingerprint {
        self.0.table.fingerprint()
    }
}

impl fmt::Debug for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFolder")
            .field("table", &self.0.table)
            .field("origin", &self.0.origin)
            .finish_non_exhaustive()
    }
}

fn class_counts(table: &PathTable) -> Vec<u64> {
    let mut counts = vec![0; table.class_count() as usize];
    let mut add = |class: u32, n| {
        if let Some(count) = counts.get_mut(class as usize) {
            *count += n;
        }
    };
    if table.section(Section::Labels).is_empty() {
        for dir in 0..table.filled() {
            if let (Some(record), Some((first, end))) = (table.dir(dir), table.dir_entries(dir)) {
                add(record.class, end - first);
            }
        }
    } else {
        table.iter().flatten().for_each(|entry| add(entry.class(), 1));
    }
    counts
}

type Predicate = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// How an [`ImageFolder`] is opened. Each method may be called in any order; the last call counts.
#[derive(Clone)]
#[must_use]
pub struct ImageFolderBuilder {
    root: PathBuf,
    extensions: Vec<OsString>,
    predicate: Option<(Option<String>, Predicate)>,
    hidden: bool,
    follow_links: bool,
    empty: EmptyClasses,
    order: ClassOrder,
    unreadable: Unreadable,
    classes: Option<Vec<OsString>>,
    cache: TableCache,
    rescan: bool,
}

impl fmt::Debug for ImageFolderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFolderBuilder").field("root", &self.root).finish_non_exhaustive()
    }
}

impl ImageFolderBuilder {
    /// What the names of samples end with, in upper or lower case (ASCII). By default `.jpg`,
    /// `.jpeg`, `.png`, `.ppm`, `.bmp`, `.pgm`, `.tif`, `.tiff` and `.webp`. A leading dot may be
    /// left out.
    pub fn extensions<E: Into<OsString>>(mut self, list: impl IntoIterator<Item = E>) -> Self {
        self.extensions = list.into_iter().map(Into::into).collect();
        self.predicate = None;
        self
    }

    /// Asks the function, which gets the full path, whether a file is a sample, instead of looking
    /// at extensions: torchvision's `is_valid_file`. Called from several threads.
    ///
    /// The table is kept under `key`, to be changed whenever the function's answers change; with
    /// `None` it is not kept. Answers that depend on a file's content are not asked for again
    /// unless its directory changes.
    pub fn predicate(
        mut self,
        key: Option<&str>,
        accept: impl Fn(&Path) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.predicate = Some((key.map(str::to_owned), Arc::new(accept)));
        self
    }

    /// Whether names that begin with a dot are data. By default they are not.
    pub fn hidden(mut self, include: bool) -> Self {
        self.hidden = include;
        self
    }

    /// Whether links are followed. By default they are; links that lead back to a folder above
    /// them are left out.
    pub fn follow_links(mut self, follow: bool) -> Self {
        self.follow_links = follow;
        self
    }

    /// What to do with classes without samples. By default they are refused.
    pub fn empty_classes(mut self, policy: EmptyClasses) -> Self {
        self.empty = policy;
        self
    }

    /// How classes are numbered. By default by the bytes of their names. The order of the samples
    /// does not depend on it.
    pub fn class_order(mut self, order: ClassOrder) -> Self {
        self.order = order;
        self
    }

    /// The classes by label, such as those of the training set for the validation set. A class
    /// folder that is not among them is an error. By default they are the class folders found.
    pub fn classes<C: Into<OsString>>(mut self, list: impl IntoIterator<Item = C>) -> Self {
        self.classes = Some(list.into_iter().map(Into::into).collect());
        self
    }

    /// What to do where a folder can't be read. By default opening fails.
    pub fn unreadable(mut self, policy: Unreadable) -> Self {
        self.unreadable = policy;
        self
    }

    /// Where the table is kept. By default in the user's cache folder.
    pub fn cache(mut self, cache: TableCache) -> Self {
        self.cache = cache;
        self
    }

    /// Whether to read every directory again, whatever is kept. By default only changed ones are.
    pub fn rescan(mut self, rescan: bool) -> Self {
        self.rescan = rescan;
        self
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(self) -> Result<ImageFolder, FolderError> {
        let plan = Plan::new(self)?;
        let keep = !matches!(plan.builder.predicate, Some((None, _)));
        let cache = if keep { plan.builder.cache.clone() } else { TableCache::Off };
        let file =
            cache.file(&plan.canonical, &plan.encoded, "paths", |name| std::env::var_os(name));
        let exact = matches!(cache, TableCache::File(_));
        if file.is_none() && cache == TableCache::User {
            tracing::warn!(
                root = %plan.root.display(),
                "no folder to keep the path table in: set LOADER_CACHE_DIR or HOME"
            );
        }
        let (table, origin) =
            match index::open_kept(file.as_deref(), exact, plan.builder.rescan, &plan) {
                Ok((table, origin)) => (table.with_root(&plan.root), origin),
                Err(error) => return Err(error),
            };
        let folder = ImageFolder::new(table, origin)?;
        plan.check(&folder)?;
        Ok(folder)
    }
}

/// A builder's options, checked and resolved.
struct Plan {
    builder: ImageFolderBuilder,
    root: PathBuf,
    canonical: PathBuf,
    root_fd: OwnedFd,
    scan: ScanOptions,
    encoded: Vec<u8>,
}

impl Plan {
    fn new(builder: ImageFolderBuilder) -> Result<Self, FolderError> {
        let not_a_folder = |source| FolderError::NotAFolder { root: builder.root.clone(), source };
        let root = std::path::absolute(&builder.root).map_err(not_a_folder)?;
        let root_fd = index::open_root(&root).map_err(not_a_folder)?;
        let canonical = root.canonicalize().map_err(not_a_folder)?;
        if let Some(classes) = &builder.classes {
            let bad = |what| Err(FolderError::Option { option: "classes", what });
            if classes.is_empty() {
                return bad("an empty list; leave it out to take the class folders found");
            }
            if classes.iter().collect::<HashSet<_>>().len() < classes.len() {
                return bad("a name occurs twice");
            }
            if builder.empty == EmptyClasses::Drop {
                return bad("with EmptyClasses::Drop the labels would not be the list's: use Keep");
            }
            if builder.order != ClassOrder::Bytes {
                return bad("the list is the order already: leave out class_order");
            }
        }
        let accept = match &builder.predicate {
            Some((_, predicate)) => Accept::Predicate(predicate.clone()),
            None => Accept::Extensions(extensions(&builder.extensions)?),
        };
        let scan = ScanOptions {
            accept,
            hidden: builder.hidden,
            follow_links: builder.follow_links,
            flat: false,
        };
        let encoded = encode(&builder, &scan);
        Ok(Self { builder, root, canonical, root_fd, scan, encoded })
    }

    fn options_match(&self, table: &PathTable) -> bool {
        table.section(Section::Options) == self.encoded
    }

    /// The names of the classes.
    fn classes(&self, dirs: &[Dir]) -> Result<Vec<Vec<u8>>, FolderError> {
        let mut found: HashMap<&[u8], u64> = HashMap::new();
        for dir in dirs.iter().filter(|dir| !dir.path.is_empty()) {
            *found.entry(first_part(&dir.path)).or_default() += dir.names.lens.len() as u64;
        }
        if let Some(given) = &self.builder.classes {
            let known: HashSet<&[u8]> = given.iter().map(|name| name.as_bytes()).collect();
            let mut unknown: Vec<_> =
                found.keys().filter(|name| !known.contains(*name)).map(|n| os_string(n)).collect();
            if !unknown.is_empty() {
                unknown.sort();
                let (root, known) = (self.root.clone(), known.len());
                return Err(FolderError::UnknownClasses { root, classes: unknown, known });
            }
            Ok(given.iter().map(|name| name.as_bytes().to_vec()).collect())
        } else {
            let keep = |&(_, &count): &(&&[u8], &u64)| {
                count > 0 || self.builder.empty != EmptyClasses::Drop
            };
            let mut names: Vec<_> =
                found.iter().filter(keep).map(|(name, _)| name.to_vec()).collect();
            names.sort_by(|a, b| match self.builder.order {
                ClassOrder::Bytes => a.cmp(b),
                ClassOrder::Natural => natural(a, b),
            });
            Ok(names)
        }
    }

    /// What a table of this folder must have for the folder to open.
    fn check(&self, folder: &ImageFolder) -> Result<(), FolderError> {
        let (root, report) = (self.root.clone(), folder.report());
        if self.builder.unreadable == Unreadable::Refuse {
            refuse_unreadable(&root, report)?;
        }
        if folder.table().class_count() == 0 {
            return Err(FolderError::NoClasses { root, report: Box::new(report.clone()) });
        }
        if self.builder.empty == EmptyClasses::Refuse {
            let counts = folder.class_counts();
            let empty = folder.classes().zip(counts).filter(|(_, count)| *count == 0);
            let classes: Vec<_> = empty.map(|(name, _)| name.to_owned()).collect();
            if !classes.is_empty() {
                let accepted = match &self.scan.accept {
                    Accept::Predicate(_) => "what the predicate accepts".to_owned(),
                    Accept::Extensions(list) => {
                        let list = list.iter().map(|e| e.escape_ascii().to_string());
                        format!("files with {}", list.collect::<Vec<_>>().join(", "))
                    }
                };
                let report = Box::new(report.clone());
                return Err(FolderError::EmptyClasses { root, classes, accepted, report });
            }
        }
        Ok(())
    }
}

impl index::Source for Plan {
    type Error = FolderError;

    fn is_fresh(&self, table: &PathTable) -> bool {
        self.options_match(table)
            && index::is_fresh(table, self.root_fd.as_fd())
            // Opening reads the report, so a damaged one must not come that far.
            && table.report().is_ok()
    }

    fn build(&self, old: Option<&PathTable>) -> Result<Built, FolderError> {
        let old = old.filter(|old| self.options_match(old));
        let dirs = index::scan(&self.root, self.root_fd.as_fd(), &self.scan, old)
            .map_err(|source| FolderError::Scan { root: self.root.clone(), source })?;
        let classes = self.classes(&dirs)?;
        let numbers: HashMap<&[u8], u32> =
            (0..).zip(&classes).map(|(number, name)| (name.as_slice(), number)).collect();
        let mut dirs: Vec<_> = dirs
            .into_iter()
            .map(|dir| {
                // A dropped class has no samples, so no entry has its number.
                let class = numbers.get(first_part(&dir.path)).copied().unwrap_or_default();
                (class, dir)
            })
            .collect();
        // As torchvision: by class, then by path, both as bytes. The slash at the end of a path
        // must not take part: `a` comes before `a-b`, but `a/` behind `a-b/`.
        let key = |dir: &Dir| {
            let class = first_part(&dir.path).len();
            let path = dir.path.strip_suffix(b"/").unwrap_or(&dir.path);
            (path[..class].to_vec(), path.to_vec())
        };
        dirs.sort_by_cached_key(|(_, dir)| key(dir));
        let bytes = index::encode_table(Content {
            root: &self.canonical,
            options: &self.encoded,
            classes: &classes,
            dirs,
            order: Vec::new(),
            labels: Vec::new(),
        })?;
        let origin = if old.is_some() { TableOrigin::Refreshed } else { TableOrigin::Scanned };
        Ok(Built { bytes, origin })
    }
}

/// An error where the report tells of something that could not be read.
pub(super) fn refuse_unreadable(root: &Path, report: &ScanReport) -> Result<(), FolderError> {
    let count = report.count(Reason::Unreadable);
    if count == 0 {
        return Ok(());
    }
    let left = report.left_out.iter().filter(|left| left.reason == Reason::Unreadable);
    let examples = left.flat_map(|left| {
        left.examples.iter().map(|path| {
            let mut text = root.join(path).into_os_string();
            text.push(format!(": {}", left.detail));
            text
        })
    });
    Err(FolderError::Unreadable { root: root.to_owned(), count, examples: examples.collect() })
}

fn first_part(path: &[u8]) -> &[u8] {
    path.split(|&b| b == b'/').next().unwrap_or_default()
}

fn os_string(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// The extensions in lower case, with their dots, sorted, each once.
pub(super) fn extensions(list: &[OsString]) -> Result<Vec<Vec<u8>>, FolderError> {
    let mut out = Vec::new();
    for extension in list {
        let mut bytes = extension.as_bytes().to_ascii_lowercase();
        if bytes.first() != Some(&b'.') {
            bytes.insert(0, b'.');
        }
        if bytes.len() < 2 || bytes.iter().any(|b| matches!(b, 0 | b'/')) {
            let what = "an extension is empty or contains a slash or a zero byte";
            return Err(FolderError::Option { option: "extensions", what });
        }
        out.push(bytes);
    }
    if out.is_empty() {
        let what = "an empty list; leave it out for the usual image formats";
        return Err(FolderError::Option { option: "extensions", what });
    }
    out.sort();
    out.dedup();
    Ok(out)
}

/// What a table was scanned with, as strings with a zero byte behind each. Options that merely
/// decide whether opening fails are not part of it.
fn encode(builder: &ImageFolderBuilder, scan: &ScanOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |text: &[u8]| {
        out.extend_from_slice(text);
        out.push(0);
    };
    put(b"image-folder 1");
    put(if scan.hidden { b"hidden" } else { b"no hidden" });
    put(if scan.follow_links { b"links" } else { b"no links" });
    match (&builder.classes, builder.order, builder.empty) {
        (Some(list), ..) => {
            let each = list.iter().map(|name| Fingerprint::of(name.as_bytes()));
            let all = each.fold(Fingerprint::of(b""), Fingerprint::and);
            put(format!("classes {all}").as_bytes());
        }
        (None, ClassOrder::Bytes, _) => put(b"classes by bytes"),
        (None, ClassOrder::Natural, _) => put(b"classes by number"),
    }
    put(if builder.empty == EmptyClasses::Drop { b"drop empty" } else { b"keep empty" });
    match (&scan.accept, &builder.predicate) {
        (Accept::Extensions(list), _) => list.iter().for_each(|extension| put(extension)),
        (Accept::Predicate(_), key) => {
            put(b"predicate");
            // The last string, so that any key is told apart.
            put(key.as_ref().and_then(|(key, _)| key.as_deref()).unwrap_or_default().as_bytes());
        }
    }
    out
}

/// Compares runs of digits by their values, everything else by bytes.
fn natural(a: &[u8], b: &[u8]) -> Ordering {
    let (mut x, mut y) = (a, b);
    while let (Some(p), Some(q)) = (x.first(), y.first()) {
        if p.is_ascii_digit() && q.is_ascii_digit() {
            let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
            let ((m, rest), (n, other)) = (x.split_at(digits(x)), y.split_at(digits(y)));
            let value = |text: &[u8]| text.iter().position(|&b| b != b'0').unwrap_or(text.len());
            let (m, n) = (&m[value(m)..], &n[value(n)..]);
            match m.len().cmp(&n.len()).then_with(|| m.cmp(n)) {
                Ordering::Equal => (x, y) = (rest, other),
                unequal => return unequal,
            }
        } else if p == q {
            (x, y) = (&x[1..], &y[1..]);
        } else {
            return p.cmp(q);
        }
    }
    // `01` and `1` must not be the same class.
    x.len().cmp(&y.len()).then_with(|| a.cmp(b))
}
