"""Every error that a qpack command ends with.

QpackError                  what, where, both values, the remedy; `exit_code` is the command's
+-- InputError         1    the checkpoint or a text is wrong
+-- UsageError         2    the command was asked for something that makes no sense
+-- QualityError       3    the quantized model missed its gate
+-- UnsupportedError   4    the target, host or architecture is not supported
+-- FitError           6    the request or the model does not fit
+-- TrustError         8    nobody who is trusted vouches for the bundle
+-- BundleError             the bundle must not be opened: carries all findings
    +-- IntegrityError 5    it is damaged
    +-- VersionError   7    it needs another version of qpack
"""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Finding:
    """One broken rule. `where` is `file#/json/pointer`, a path inside the bundle, or a tensor or buffer name."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class QpackError(Exception):
    """Base of all errors meant for people. `where` names the file, pointer or tensor; `remedy` says what to do."""

    exit_code = 1

    def __init__(self, message: str, *, where: str = "", remedy: str = ""):
        super().__init__(message)
        self.message, self.where, self.remedy = message, where, remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  remedy: {self.remedy}" if self.remedy else text


class InputError(QpackError):
    exit_code = 1


class UsageError(QpackError):
    exit_code = 2


class QualityError(QpackError):
    exit_code = 3


class UnsupportedError(QpackError):
    exit_code = 4


class BundleError(QpackError):
    """A bundle that must not be opened; `findings` holds every broken rule, the message the first few."""

    SHOWN = 20

    def __init__(self, message: str, findings: list[Finding], *, where: str = "", remedy: str = ""):
        lines = [f"  {finding}" for finding in findings[: self.SHOWN]]
        if len(findings) > self.SHOWN:
            lines.append(f"  ... and {len(findings) - self.SHOWN} more")
        super().__init__("\n".join([message, *lines]), where=where, remedy=remedy)
        self.findings = findings


class IntegrityError(BundleError):
    exit_code = 5


class FitError(QpackError):
    exit_code = 6


class VersionError(BundleError):
    exit_code = 7


class TrustError(QpackError):
    exit_code = 8
