// Package remote asks detectors of content outside of this process, over HTTP:
// Presidio's analyzer, a moderation endpoint as OpenAI describes it, and the
// classification endpoint of vLLM (section 11 of the policy format). A [Detector]
// is one of the external detectors of package classify.
//
// A detector is sent prompt text. So it is reached over TLS, or not beyond this
// machine; a redirect is not followed; and neither a text nor an answer stands
// in an error or a log.
//
// A detector that can't be asked, that answers with anything but what its shape
// promises, or that does not know, has failed: a text that nobody has judged
// must never look like a harmless one.
package remote
