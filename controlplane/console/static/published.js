// Removes a published draft from the browser. The notice on this page confirms the publication.

const key = sessionStorage.getItem("graphward-publishing");
sessionStorage.removeItem("graphward-publishing");
if (key && document.querySelector("main .notice.good")) localStorage.removeItem(key);
