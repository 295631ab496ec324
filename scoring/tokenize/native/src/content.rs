//! Whether a chat template wants the content of a message as a text or as a
//! list of parts. The engine finds out from the template's syntax tree: a
//! template that loops over `message.content` gets the list. The same reading is
//! done here, with its blind spots, because what counts is what the engine does.

use std::collections::HashSet;

use minijinja::machinery::ast::{CallArg, Expr, Macro, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

/// How content reaches the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One text: parts are joined with newlines.
    Text,
    /// A list of parts, also for content that came as a text.
    Parts,
}

/// Reads the format from a template.
pub fn detect(source: &str, syntax: SyntaxConfig) -> Format {
    let Ok(root) = parse(source, NAME, syntax) else {
        return Format::Text;
    };
    let mut facts = Facts::default();
    facts.statement(&root, false);
    match facts.loops_over_content() {
        Some(true) => Format::Parts,
        // Where the engine's reading fails it takes the text, too.
        Some(false) | None => Format::Text,
    }
}

const NAME: &str = "chat_template";

/// Everything in a template that the reading is about.
#[derive(Default)]
struct Facts<'a> {
    assignments: Vec<(&'a Expr<'a>, &'a Expr<'a>)>,
    loops: Vec<Loop<'a>>,
    macros: Vec<(&'a Macro<'a>, Vec<&'a Expr<'a>>)>,
    calls: Vec<(&'a str, &'a [CallArg<'a>])>,
}

struct Loop<'a> {
    target: &'a Expr<'a>,
    iter: &'a Expr<'a>,
    in_macro: bool,
}

impl<'a> Facts<'a> {
    /// None when the engine's reading fails on an unexpected target.
    fn loops_over_content(&self) -> Option<bool> {
        let mut messages = vec!["messages"];
        let mut next = 0;
        while let Some(&name) = messages.get(next) {
            next += 1;
            for (target, value) in &self.assignments {
                if is_elements(value, name, None) {
                    let target = variable(target)?;
                    if !messages.contains(&target) {
                        messages.push(target);
                    }
                }
            }
        }
        let mut message = Vec::new();
        for l in &self.loops {
            if messages.iter().any(|name| is_elements(l.iter, name, None)) {
                message.push(variable(l.target)?);
            }
        }
        for l in &self.loops {
            if message
                .iter()
                .any(|name| is_elements(l.iter, name, Some("content")))
            {
                return variable(l.target).map(|_| true);
            }
            if !l.in_macro && variable(l.iter) == Some("content") {
                return variable(l.target).map(|_| true);
            }
        }
        Some(self.macros.iter().any(|(m, loops)| {
            let parameters = self.content_parameters(m, &message);
            loops
                .iter()
                .any(|iter| variable(iter).is_some_and(|name| parameters.contains(name)))
        }))
    }

    /// The parameters of a macro that are called with a message's content.
    fn content_parameters(&self, m: &Macro<'a>, message: &[&str]) -> HashSet<&'a str> {
        let is_content = |e: &Expr| {
            message
                .iter()
                .any(|name| is_elements(e, name, Some("content")))
        };
        let mut parameters = HashSet::new();
        for (_, args) in self.calls.iter().filter(|(name, _)| *name == m.name) {
            let positional = args.iter().filter_map(|arg| match arg {
                CallArg::Pos(e) => Some(e),
                _ => None,
            });
            for (arg, parameter) in positional.zip(&m.args) {
                if is_content(arg) {
                    parameters.extend(variable(parameter));
                }
            }
            for arg in args.iter() {
                match arg {
                    CallArg::Kwarg(name, e) if is_content(e) => {
                        parameters.insert(*name);
                    }
                    _ => {}
                }
            }
        }
        parameters
    }

    fn statements(&mut self, list: &'a [Stmt<'a>], in_macro: bool) {
        list.iter().for_each(|s| self.statement(s, in_macro));
    }

    fn statement(&mut self, s: &'a Stmt<'a>, in_macro: bool) {
        match s {
            Stmt::Template(t) => self.statements(&t.children, in_macro),
            Stmt::EmitExpr(e) => self.expression(&e.expr),
            Stmt::ForLoop(l) => {
                self.loops.push(Loop {
                    target: &l.target,
                    iter: &l.iter,
                    in_macro,
                });
                if let (Some(m), true) = (self.macros.last_mut(), in_macro) {
                    m.1.push(&l.iter);
                }
                self.expression(&l.iter);
                l.filter_expr.iter().for_each(|e| self.expression(e));
                self.statements(&l.body, in_macro);
                self.statements(&l.else_body, in_macro);
            }
            Stmt::IfCond(c) => {
                self.expression(&c.expr);
                self.statements(&c.true_body, in_macro);
                self.statements(&c.false_body, in_macro);
            }
            Stmt::WithBlock(w) => {
                w.assignments.iter().for_each(|(_, e)| self.expression(e));
                self.statements(&w.body, in_macro);
            }
            Stmt::Set(set) => {
                self.assignments.push((&set.target, &set.expr));
                self.expression(&set.expr);
            }
            Stmt::SetBlock(set) => self.statements(&set.body, in_macro),
            Stmt::AutoEscape(a) => self.statements(&a.body, in_macro),
            Stmt::FilterBlock(f) => self.statements(&f.body, in_macro),
            Stmt::Macro(m) => {
                self.macros.push((m, Vec::new()));
                self.statements(&m.body, true);
            }
            Stmt::CallBlock(c) => {
                c.call.args.iter().for_each(|a| self.argument(a));
                self.call(&c.call.expr, &c.call.args);
                self.statements(&c.macro_decl.body, in_macro);
            }
            Stmt::Do(d) => self.call(&d.call.expr, &d.call.args),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        }
    }

    fn call(&mut self, callee: &'a Expr<'a>, args: &'a [CallArg<'a>]) {
        match variable(callee) {
            Some(name) => self.calls.push((name, args)),
            None => self.expression(callee),
        }
        args.iter().for_each(|a| self.argument(a));
    }

    fn argument(&mut self, a: &'a CallArg<'a>) {
        match a {
            CallArg::Pos(e) | CallArg::Kwarg(_, e) => self.expression(e),
            CallArg::PosSplat(e) | CallArg::KwargSplat(e) => self.expression(e),
        }
    }

    /// Only calls are of interest inside expressions.
    fn expression(&mut self, e: &'a Expr<'a>) {
        match e {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(s) => {
                self.expression(&s.expr);
                [&s.start, &s.stop, &s.step]
                    .into_iter()
                    .flatten()
                    .for_each(|e| self.expression(e));
            }
            Expr::UnaryOp(u) => self.expression(&u.expr),
            Expr::BinOp(b) => {
                self.expression(&b.left);
                self.expression(&b.right);
            }
            Expr::Compare(c) => {
                self.expression(&c.expr);
                c.ops.iter().for_each(|op| self.expression(&op.expr));
            }
            Expr::IfExpr(i) => {
                self.expression(&i.test_expr);
                self.expression(&i.true_expr);
                i.false_expr.iter().for_each(|e| self.expression(e));
            }
            Expr::Filter(f) => {
                f.expr.iter().for_each(|e| self.expression(e));
                f.args.iter().for_each(|a| self.argument(a));
            }
            Expr::Test(t) => {
                self.expression(&t.expr);
                t.args.iter().for_each(|a| self.argument(a));
            }
            Expr::GetAttr(g) => self.expression(&g.expr),
            Expr::GetItem(g) => {
                self.expression(&g.expr);
                self.expression(&g.subscript_expr);
            }
            Expr::Call(c) => self.call(&c.expr, &c.args),
            Expr::List(l) => l.items.iter().for_each(|e| self.expression(e)),
            Expr::Tuple(t) => t.items.iter().for_each(|e| self.expression(e)),
            Expr::Map(m) => m
                .keys
                .iter()
                .chain(&m.values)
                .for_each(|e| self.expression(e)),
        }
    }
}

fn variable<'a>(e: &Expr<'a>) -> Option<&'a str> {
    match e {
        Expr::Var(v) => Some(v.id),
        _ => None,
    }
}

/// Whether `e` is the variable, or its attribute `key`, possibly filtered,
/// tested or sliced.
fn is_elements(e: &Expr, name: &str, key: Option<&str>) -> bool {
    match e {
        Expr::Filter(f) => f.expr.as_ref().is_some_and(|e| is_elements(e, name, key)),
        Expr::Test(t) => is_elements(&t.expr, name, key),
        Expr::Slice(s) => is_elements(&s.expr, name, key),
        Expr::Var(v) => key.is_none() && v.id == name,
        Expr::GetAttr(g) => Some(g.name) == key && variable(&g.expr) == Some(name),
        Expr::GetItem(g) => {
            key.is_some()
                && variable(&g.expr) == Some(name)
                && matches!(&g.subscript_expr, Expr::Const(c) if c.value.as_str() == key)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_read_from_the_loops() {
        let looped =
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
        for (source, want) in [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", Format::Text),
            (looped, Format::Parts),
            ("{% for m in messages[1:] | list %}{% for p in m['content'] | reverse %}{% endfor %}{% endfor %}", Format::Parts),
            ("{% set a = messages %}{% set b = a[1:] %}{% for m in b %}{% for p in m.content %}{% endfor %}{% endfor %}", Format::Parts),
            ("{% for m in other %}{% for p in m.content %}{% endfor %}{% endfor %}", Format::Text),
            ("{% for m in messages %}{% set content = m.content %}{% for p in content %}{% endfor %}{% endfor %}", Format::Parts),
            ("{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}", Format::Text),
            ("{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}", Format::Parts),
            ("{% macro f(x, c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(1, c=m.content) }}{% endfor %}", Format::Parts),
            ("{% macro f(c, x) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(1, m.content) }}{% endfor %}", Format::Text),
            ("{% set ns = namespace() %}{% set ns.m = messages %}{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", Format::Text),
            ("{% for a, b in messages %}{% for p in content %}{% endfor %}{% endfor %}", Format::Text),
            ("{% if %}", Format::Text),
        ] {
            let syntax = SyntaxConfig::default();
            assert_eq!(detect(source, syntax), want, "{source}");
        }
    }
}
