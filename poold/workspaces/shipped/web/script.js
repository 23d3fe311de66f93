const clock = document.querySelector("#clock");

function show() {
  clock.textContent = new Date().toLocaleTimeString();
}

show();
setInterval(show, 1000);
