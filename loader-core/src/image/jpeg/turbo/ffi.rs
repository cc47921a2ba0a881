//! The calls into C. `shim.c` keeps libjpeg's error handling, a jump, inside of C; here its functions
//! become types that can't be used in the wrong order: [`Decoder::open`] -> [`Opened::start`] ->
//! [`Started::rows`].

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::ptr::NonNull;

// For its library: the functions that `shim.c` calls.
use turbojpeg_sys as _;

use super::scan::{Description, Scan};
use crate::image::jpeg::huffman;

/// `struct lj`.
#[repr(C)]
struct Context {
    opaque: [u8; 0],
}

/// `struct lj_header`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) height: u32,
    /// 1 is grey, 3 are a colour, 4 are CMYK.
    pub(super) components: u32,
    /// The largest sampling factor along a row.
    pub(super) max_h: u32,
}

// SAFETY: the declarations repeat the definitions in `shim.c`, which this crate compiles.
unsafe extern "C" {
    fn lj_new() -> *mut Context;
    fn lj_free(context: *mut Context);
    fn lj_message(context: *const Context) -> *const c_char;
    fn lj_open(
        context: *mut Context,
        bytes: *const c_uchar,
        len: usize,
        limit: u64,
        header: *mut Header,
    ) -> c_int;
    fn lj_start(
        context: *mut Context,
        scale: u32,
        channels: u32,
        x: *mut u32,
        width: *mut u32,
    ) -> c_int;
    fn lj_scan(
        context: *mut Context,
        len: usize,
        x: u32,
        width: u32,
        scan: *mut Description,
    ) -> c_int;
    fn lj_rows(
        context: *mut Context,
        y: u32,
        rows: u32,
        out: *mut c_uchar,
        stride: usize,
        len: usize,
        unit: Option<Unit>,
        state: *mut c_void,
    ) -> c_int;
}

/// `lj_unit`.
type Unit = unsafe extern "C" fn(state: *mut c_void, blocks: *const *mut [i16; 64]) -> c_int;

/// What `lj_rows` returns where a [`Scan`] refused a unit.
const GAVE_UP: c_int = 2;

/// Has `state` read the next unit.
///
/// # Safety
///
/// `state` is a [`Scan`] that nobody else uses meanwhile. `blocks` is null, or as many pointers as the
/// scan has blocks, each to a block of its own that may be written.
unsafe extern "C" fn unit(state: *mut c_void, blocks: *const *mut [i16; 64]) -> c_int {
    // SAFETY: promised by the caller. It returns to C, and nothing in it panics or jumps.
    let scan = unsafe { &mut *state.cast::<Scan<'_>>() };
    let count = scan.blocks();
    let block = (!blocks.is_null()).then_some(|i: usize| {
        debug_assert!(i < count);
        // SAFETY: promised by the caller, for `i` is a block's number; each is asked for once.
        unsafe { &mut **blocks.add(i) }
    });
    c_int::from(scan.unit(block).is_some())
}

/// libjpeg's state and working memory, kept from image to image.
#[derive(Debug)]
pub(super) struct Decoder {
    context: NonNull<Context>,
    huffman: huffman::Scratch,
}

// SAFETY: the context is memory of its own, bound to no thread: libjpeg has no global state but the
// detected CPU features, which are thread-local. Only `&mut self` reaches it.
unsafe impl Send for Decoder {}

// SAFETY: nothing can be done with `&Decoder`.
unsafe impl Sync for Decoder {}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `lj_new`, and nobody uses it after this.
        unsafe { lj_free(self.context.as_ptr()) }
    }
}

impl Decoder {
    pub(super) fn new() -> Result<Self, String> {
        // SAFETY: it takes nothing, and gives null or a context that is ours alone.
        let context = unsafe { lj_new() };
        let context = NonNull::new(context).ok_or("out of memory")?;
        Ok(Self { context, huffman: huffman::Scratch::default() })
    }

    /// Reads the header of a file; decoding it may take `limit` bytes of working memory.
    pub(super) fn open<'a>(
        &'a mut self,
        bytes: &'a [u8],
        limit: u64,
    ) -> Result<Opened<'a>, String> {
        let mut header = Header::default();
        // SAFETY:
        // - `self.context` is a live context, borrowed mutably.
        // - `bytes` is readable for its length, now and until the result, which borrows it, is gone;
        //   the next call after that is `open` or `drop`, which don't look at it.
        // - `header` is writable and of the layout that the shim knows.
        let code = unsafe {
            lj_open(self.context.as_ptr(), bytes.as_ptr(), bytes.len(), limit, &raw mut header)
        };
        self.check(code)?;
        Ok(Opened { decoder: self, header, bytes, limit })
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the message is a string in the live context that ends within its array, and it is
        // copied before anything can write another.
        let message = unsafe { CStr::from_ptr(lj_message(self.context.as_ptr())) };
        Err(message.to_string_lossy().into_owned())
    }
}

/// A file whose header was read.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    decoder: &'a mut Decoder,
    header: Header,
    bytes: &'a [u8],
    limit: u64,
}

impl<'a> Opened<'a> {
    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    pub(super) fn huffman(&mut self) -> &mut huffman::Scratch {
        &mut self.decoder.huffman
    }

    /// Begins to decode at `scale`/8 of the size, into RGB, or into CMYK as stored if `channels` is 4.
    /// Of each row, at least the given columns are made; `None` asks for all.
    pub(super) fn start(
        self,
        scale: u32,
        channels: u32,
        columns: Option<(u32, u32)>,
    ) -> Result<Started<'a>, String> {
        let (mut x, mut width) = columns.unwrap_or((0, 0));
        // SAFETY: the context is live and borrowed mutably by `self`, the file that was opened in it
        // is borrowed as well, and the two results are writable.
        let code = unsafe {
            lj_start(self.decoder.context.as_ptr(), scale, channels, &raw mut x, &raw mut width)
        };
        self.decoder.check(code)?;
        Ok(Started { opened: self, x, width, channels })
    }
}

/// A file that is being decoded.
#[derive(Debug)]
pub(super) struct Started<'a> {
    opened: Opened<'a>,
    /// The first column of every row, and their number.
    pub(super) x: u32,
    pub(super) width: u32,
    channels: u32,
}

/// How decoding rows ended.
#[derive(Debug)]
pub(super) enum Rows<'a> {
    Made,
    /// There is more to the file than a [`Scan`] reads: it was opened anew.
    Again(Opened<'a>),
}

impl<'a> Started<'a> {
    /// Decodes rows `y..y + rows`, which `out` is to hold without gaps, and stops there. `plainly` leaves
    /// all of it to libjpeg.
    pub(super) fn rows(
        self,
        y: u32,
        rows: u32,
        out: &mut [u8],
        plainly: bool,
    ) -> Result<Rows<'a>, String> {
        let Self { opened: Opened { decoder, bytes, limit, .. }, x, width, channels } = self;
        let stride = width as usize * channels as usize;
        let context = decoder.context.as_ptr();
        let mut description = Description::default();
        // SAFETY: the context is live and borrowed mutably, the file in it was started, and
        // `description` is writable and of the layout that the shim knows.
        let described = !plainly
            && unsafe { lj_scan(context, bytes.len(), x, width, &raw mut description) } != 0;
        let mut scan = match described {
            true => Scan::of(bytes, &description, &mut decoder.huffman),
            false => None,
        };
        let (unit, state) = match &mut scan {
            Some(scan) => (Some(unit as Unit), (&raw mut *scan).cast()),
            None => (None, std::ptr::null_mut()),
        };
        // SAFETY:
        // - The context is live and borrowed mutably, and so is the file that was opened in it.
        // - `out` is writable for the length given. The shim checks that rows of its own width, that
        //   far apart, end within that length before it writes any.
        // - `unit` is called with `state`, a `Scan` that lives through the call and that nobody else
        //   uses, and with blocks of libjpeg's: as many as it told `lj_scan`, each of its own.
        let code =
            unsafe { lj_rows(context, y, rows, out.as_mut_ptr(), stride, out.len(), unit, state) };
        if code == GAVE_UP {
            return decoder.open(bytes, limit).map(Rows::Again);
        }
        decoder.check(code).map(|()| Rows::Made)
    }
}
