// A draft that was published is kept no longer. That it was, the notice on this page says.

const key = sessionStorage.getItem("graphward-publishing");
sessionStorage.removeItem("graphward-publishing");
if (key && document.querySelector("main .notice.good")) localStorage.removeItem(key);
