;; A parser in WebAssembly text with holes: `{{name}}` is replaced by the test that wants it.
;;
;; Memory: descriptor image at 0x400, canned reply at 0x8000, arguments (bump) at 0x10000, reply
;; image at 0x20000. Without any hole filled it is a well-behaved parser that says nothing; the
;; default `push` reads its text as hex and answers with those bytes as the reply's memory.
(module
  (import "[export]tenon:extension/output-parser@0.1.0" "[resource-new]session"
    (func $new_session (param i32) (result i32)))
  (memory (export "memory") {{pages}})
  (table $table {{table}} funcref)
  (global $bump (mut i32) (i32.const 0x10000))
  (data (i32.const 0x400) "{{descriptor}}")
  (data (i32.const 0x8000) "{{reply}}")

  (func $realloc (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32)
    (param $size i32) (result i32)
    (local $at i32)
    {{realloc}}
    (local.set $at
      (i32.and
        (i32.add (global.get $bump) (i32.sub (local.get $align) (i32.const 1)))
        (i32.sub (i32.const 0) (local.get $align))))
    (global.set $bump (i32.add (local.get $at) (local.get $size)))
    (if (i32.gt_u (global.get $bump) (i32.const 0x20000)) (then unreachable))
    (local.get $at))

  (func $nibble (param $c i32) (result i32)
    (if (result i32) (i32.ge_u (local.get $c) (i32.const 97))
      (then (i32.sub (local.get $c) (i32.const 87)))
      (else (i32.sub (local.get $c) (i32.const 48)))))

  ;; Hex text to bytes at 0x20000.
  (func $decode (param $text i32) (param $len i32) (result i32)
    (local $i i32)
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (i32.add (local.get $i) (i32.const 1)) (local.get $len)))
        (i32.store8
          (i32.add (i32.const 0x20000) (i32.shr_u (local.get $i) (i32.const 1)))
          (i32.or
            (i32.shl
              (call $nibble (i32.load8_u (i32.add (local.get $text) (local.get $i))))
              (i32.const 4))
            (call $nibble
              (i32.load8_u offset=1 (i32.add (local.get $text) (local.get $i))))))
        (local.set $i (i32.add (local.get $i) (i32.const 2)))
        (br $next)))
    (global.set $bump (i32.const 0x10000))
    (i32.const 0x20000))

  (func $recurse (param $n i32) (result i32)
    (i32.add (i32.const 1) (call $recurse (i32.add (local.get $n) (i32.const 1)))))

  (func $spin (loop $forever (br $forever)))

  (func (export "tenon:extension/output-parser@0.1.0#describe") (result i32)
    {{describe}}
    (i32.const 0x400))

  ;; A grammar is never needed: ok(none).
  (func (export "tenon:extension/output-parser@0.1.0#constraint") (param i32) (result i32)
    {{constraint}}
    (i32.const 0x8100))

  (func (export "tenon:extension/output-parser@0.1.0#[constructor]session")
    (param $tools i32) (param $tools_len i32) (param $choice i32)
    (param $name_some i32) (param $name i32) (param $name_len i32)
    (param $parallel i32) (param $strict i32)
    (param $style_some i32) (param $style i32) (param $style_len i32)
    (param $start i32) (param $strict_markers i32)
    (result i32)
    {{constructor}}
    (call $new_session (i32.const 1)))

  (func (export "tenon:extension/output-parser@0.1.0#[method]session.push")
    (param $self i32) (param $text i32) (param $len i32)
    (param $specials i32) (param $specials_len i32) (param $skipped i32) (result i32)
    {{push}}
    (call $decode (local.get $text) (local.get $len)))

  (func (export "tenon:extension/output-parser@0.1.0#[method]session.finish")
    (param $self i32) (param $reason i32) (result i32)
    {{finish}}
    (i32.const 0x8000))

  (func $start {{start}})
  (start $start)
)
